"""How an agent left: from the library's exit message to our result and ending."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.swe.agent.library import LimitsExceeded
from agentflow.types import Cause, Ending, SWERolloutResult

if TYPE_CHECKING:
    from agentflow.swe.agent.library import DefaultAgent, InterruptAgentFlow
    from agentflow.types import Message

CONTEXT_FULL = "ContextFull"
"""Exit status of an episode that filled the model's context."""

REPEATED_FORMAT_ERROR = "RepeatedFormatError"
"""The library's exit status after too many malformed turns in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of an agent's work."""

    result: SWERolloutResult
    ending: Ending
    submission: str


def exit_message(status: str) -> Message:
    """Return the last message of a run that ends without a submission, as the library words it."""
    extra = {"exit_status": status, "submission": ""}
    return {"role": "exit", "content": status, "extra": extra}


def read_outcome(
    agent: DefaultAgent, *, phase: str, interrupt: InterruptAgentFlow | None
) -> Outcome:
    """Read the outcome of an agent whose last message has the role `exit`.

    `interrupt` is the exception that brought the message, where one did.
    """
    extra = agent.messages[-1].get("extra", {})
    status = str(extra.get("exit_status", ""))
    result, cause, message = _classify(agent, status, interrupt)
    return Outcome(
        result=result,
        ending=Ending(cause=cause, phase=phase, message=message),
        submission=str(extra.get("submission", "")),
    )


def _classify(
    agent: DefaultAgent, status: str, interrupt: InterruptAgentFlow | None
) -> tuple[SWERolloutResult, Cause, str]:
    config = agent.config
    match status:
        case "Submitted":
            return SWERolloutResult.SUBMIT, Cause.SUBMITTED, "the agent submitted"
        case "TimeExceeded":
            said = f"the limit of {config.wall_time_limit_seconds} seconds was reached"
            return SWERolloutResult.EXCEED, Cause.TIME_LIMIT, said
        case "ContextFull":
            said = "the conversation fills the model's context"
            return SWERolloutResult.EXCEED, Cause.CONTEXT_FULL, said
        case "RepeatedFormatError":
            said = f"{agent.n_consecutive_format_errors} malformed turns in a row"
            return SWERolloutResult.FAILURE, Cause.FORMAT_ERRORS, said
    if isinstance(interrupt, LimitsExceeded):
        return SWERolloutResult.EXCEED, *_which_limit(agent)
    said = f"the agent left with exit status {status!r}"
    return SWERolloutResult.FAILURE, Cause.CANCELLED, said


def _which_limit(agent: DefaultAgent) -> tuple[Cause, str]:
    """Tell steps from cost, in the order in which the library looks at them."""
    config = agent.config
    if 0 < config.step_limit <= agent.n_calls:
        return Cause.STEP_LIMIT, f"the limit of {config.step_limit} steps was reached"
    return Cause.COST_LIMIT, f"the cost of {agent.cost} reached the limit of {config.cost_limit}"
