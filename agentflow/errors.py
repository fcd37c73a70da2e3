"""Every error that agentflow raises on purpose, by what a caller can do about it.

`ConfigError` is for the person at the keyboard. `EpisodeError` ends one episode and carries its
`Cause`; anything else that escapes a step is a bug and crashes the run (DESIGN decision 14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentflow.types import Cause, Ending

if TYPE_CHECKING:
    from agentflow.types import CommandResult


class AgentflowError(Exception):
    """Base of all of them."""


class ConfigError(AgentflowError):
    """Bad input: names the field, the value and what would be right."""


class WorkerCancelled(AgentflowError):
    """Somebody cancelled what a flow schedules its episodes with: none of them can go on."""


class EpisodeError(AgentflowError):
    """Ends one episode; never the run."""

    cause: ClassVar[Cause]
    phase: ClassVar[str]

    def ending(self) -> Ending:
        """This error as the record that the sample carries."""
        return Ending(cause=self.cause, phase=self.phase, message=str(self) or type(self).__name__)


# --- environments -----------------------------------------------------------------------------


class PreprocessFailed(EpisodeError):
    """The task row cannot be made into an episode."""

    cause = Cause.PREPROCESS_FAILED
    phase = "preprocess"


class EnvStartFailed(EpisodeError):
    """The environment did not come up."""

    cause = Cause.ENV_START_FAILED
    phase = "start"


class BootstrapFailed(EpisodeError):
    """The repository could not be put into the environment."""

    cause = Cause.BOOTSTRAP_FAILED
    phase = "start"


class EnvDied(EpisodeError):
    """The environment is gone, and not by the policy's doing."""

    cause = Cause.ENV_DIED
    phase = "command"


class ContainerKilled(EpisodeError):
    """The policy's own command destroyed its environment."""

    cause = Cause.CONTAINER_KILLED
    phase = "command"


class DiffFailed(EpisodeError):
    """The patch could not be read out of the environment."""

    cause = Cause.DIFF_FAILED
    phase = "diff"


class EvalFailed(EpisodeError):
    """The judge could not come to a verdict, and not by the policy's doing."""

    cause = Cause.EVAL_FAILED
    phase = "eval"


class CommandFailed(AgentflowError):
    """A command run with `check=True` did not exit 0."""

    def __init__(self, command: str, result: CommandResult) -> None:
        """Keep the whole result; show the end of the output."""
        self.command = command
        self.result = result
        end = "timed out" if result.timed_out else f"exit code {result.exit_code}"
        super().__init__(f"{command!r}: {end}: {result.text[-2000:].strip()}")


# --- engines ----------------------------------------------------------------------------------


class EngineError(EpisodeError):
    """A generation failed; the tokens received before stay in the caller's sink."""

    phase = "generation"


class EngineRejected(EngineError):
    """The engine refused the request itself; the same request will fail again."""

    cause = Cause.ENGINE_REJECTED


class EngineUnreachable(EngineError):
    """No answer: the request never ran."""

    cause = Cause.ENGINE_UNREACHABLE


class EngineOverloaded(EngineUnreachable):
    """The engine's queue is full: the request does not run; later it may."""


class EngineDied(EngineError):
    """The engine went away, or fell silent, while the request ran."""

    cause = Cause.ENGINE_DIED


class EngineAdminFailed(AgentflowError):
    """A call about the engine itself failed: pause, weight update, flush, resume, load."""


class ContextFull(EngineError):
    """No room is left for even one more token; the policy's own length."""

    cause = Cause.CONTEXT_FULL


class GenerationAborted(AgentflowError):
    """The engine ended a request because somebody asked; its tokens are in the sink."""


SglangGenerationAborted = GenerationAborted
"""The specification's name."""


class RolloutGenerationAborted(AgentflowError):
    """An episode was interrupted, its partial state saved; it belongs into the partial queue."""
