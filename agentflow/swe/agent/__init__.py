"""Agents: they turn generations into commands, and their output into the next prompt.

    mini          MiniSWEAgent: the library's agent, awaited and resumable
    action_level  ActionLevelMiniSWEAgent: the same, one action at a time
    token_model   TokenModel: the library's Model over a TurnModel

All of them need mini-swe-agent, which `library` alone imports; importing this package does not.
"""
