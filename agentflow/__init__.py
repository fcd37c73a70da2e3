"""agentflow schedules the actions of software-engineering agents for RL training.

A trainer's prompts become episodes; an episode alternates between one generation on an engine and
one shell command in an environment, and ends as token-exact, judged sample:

    RolloutSample ──▶ AgentFlow.preprocess ──▶ SWESample
                          │
            ┌── generation_step ◀──── observation ────┐
            ▼                                         │
        TurnModel ──ids──▶ Model (SGLang, scripted)   │
            │                                         │
            └── command ──▶ env_step ──▶ ContainerEnv ┘
                          │ submitted
                          ▼
        Runtime.diff ──▶ Runtime.eval in a fresh environment ──▶ RolloutSample

`agentflow.protocols` has every seam, `agentflow.types` every record, `executors` drives many
episodes at once and holds the command line.
"""
