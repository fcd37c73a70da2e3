"""One small adapter for each trainer; none contains scheduling, all stand on RolloutBackend.

slime          the functions that slime's options name, and the rollouts behind them
slime_samples  samples of agentflow as slime's, and slime's arguments as a configuration
"""
