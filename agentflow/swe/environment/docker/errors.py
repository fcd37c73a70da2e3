"""What can go wrong with a container, told apart; each names its phase and whose doing it was.

The policy's: `OutOfMemory`, and `ContainerKilled` of `agentflow.errors`. The infrastructure's: the
rest. An engine that refuses a request is told from one that does not answer.
"""

from __future__ import annotations

from agentflow.errors import AgentflowError, EnvDied, EnvStartFailed, EpisodeError
from agentflow.types import Cause


class EngineRefused(AgentflowError):
    """The engine answered a request with an error."""

    def __init__(self, message: str, *, status: int) -> None:
        """Keep the HTTP `status`: 404 means gone, 409 that the state does not allow it."""
        self.status = status
        super().__init__(message)


class EngineSilent(AgentflowError):
    """The engine cannot be reached, or gave no answer in time."""


class EngineUnavailable(EnvStartFailed):
    """No engine answered while an environment started."""


class ImageMissing(EnvStartFailed):
    """The engine has no such image, and pulling it is off or failed."""


class HelperGone(EnvStartFailed):
    """The helper's volume was removed behind our back; it is made anew once."""


class StartTimedOut(EnvStartFailed):
    """The environment was not up within its time; what there was of it is removed."""


class EngineGone(EnvDied):
    """The engine went away under a running environment and did not come back in time."""


class ContainerDied(EnvDied):
    """The container ended or was removed, and not by the policy's doing."""


class OutOfMemory(EpisodeError):
    """The policy's processes took the container's memory, and the kernel ended the container."""

    cause = Cause.OUT_OF_MEMORY
    phase = "command"


class StreamLost(AgentflowError):
    """The connection to a session broke; inside the package only."""
