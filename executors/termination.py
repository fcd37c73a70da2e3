"""From an episode's ending and reward to the class that reports count it in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.types import Cause, TerminationClass

if TYPE_CHECKING:
    from agentflow.types import Ending

_CLASS_OF: dict[Cause, TerminationClass] = {
    Cause.STEP_LIMIT: TerminationClass.MAX_TURNS,
    Cause.COST_LIMIT: TerminationClass.MAX_TURNS,
    Cause.TIME_LIMIT: TerminationClass.AGENT_TIMEOUT,
    Cause.CONTEXT_FULL: TerminationClass.CONTEXT_OVERFLOW,
    Cause.FORMAT_ERRORS: TerminationClass.WRONG_ANSWER,
    Cause.OUT_OF_MEMORY: TerminationClass.WRONG_ANSWER,
    Cause.CONTAINER_KILLED: TerminationClass.WRONG_ANSWER,
    Cause.PREPROCESS_FAILED: TerminationClass.INFRA_OTHER,
    Cause.ENV_START_FAILED: TerminationClass.INFRA_SANDBOX,
    Cause.BOOTSTRAP_FAILED: TerminationClass.INFRA_SANDBOX,
    Cause.ENV_DIED: TerminationClass.INFRA_SANDBOX,
    Cause.ENGINE_REJECTED: TerminationClass.INFRA_OTHER,
    Cause.ENGINE_UNREACHABLE: TerminationClass.INFRA_CONN,
    Cause.ENGINE_DIED: TerminationClass.INFRA_CONN,
    Cause.DIFF_FAILED: TerminationClass.INFRA_SANDBOX,
    Cause.EVAL_FAILED: TerminationClass.INFRA_SANDBOX,
    Cause.HANDLER_FAILED: TerminationClass.INFRA_OTHER,
    Cause.WEIGHT_SYNC: TerminationClass.INFRA_OTHER,
    Cause.CANCELLED: TerminationClass.INFRA_OTHER,
    Cause.DEADLINE: TerminationClass.INFRA_OTHER,
    Cause.SURPLUS: TerminationClass.INFRA_OTHER,
    Cause.STALE: TerminationClass.INFRA_OTHER,
}
"""Every cause but SUBMITTED, which the judge's verdict divides."""


def classify(ending: Ending, *, reward: float) -> TerminationClass:
    """Tell the class of an ended episode; `reward` above 0 means that the judge was content."""
    if ending.cause is Cause.SUBMITTED:
        return TerminationClass.RESOLVED if reward > 0 else TerminationClass.WRONG_ANSWER
    return _CLASS_OF[ending.cause]
