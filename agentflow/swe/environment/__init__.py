"""Where an episode's commands run: on this machine, sandboxed by bubblewrap where present."""

from agentflow.swe.environment.local import LocalEnvBuilder
from agentflow.swe.environment.local_config import LocalEnvConfig, SandboxChoice
from agentflow.swe.environment.local_env import LocalEnv

__all__ = ["LocalEnv", "LocalEnvBuilder", "LocalEnvConfig", "SandboxChoice"]
