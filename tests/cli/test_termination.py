"""Every ending has a class."""

from __future__ import annotations

import pytest

from agentflow.types import Blame, Cause, Ending, TerminationClass
from executors.termination import classify


@pytest.mark.parametrize("cause", list(Cause))
def test_the_class_agrees_with_the_blame(cause: Cause) -> None:
    """The three `infra_` classes are exactly what the infrastructure caused."""
    kind = classify(Ending(cause=cause, phase="generation"), reward=0.0)
    assert kind.startswith("infra_") == (cause.blame is Blame.INFRASTRUCTURE)


def test_a_submission_is_divided_by_its_reward() -> None:
    """Only what was submitted can be resolved."""
    submitted = Ending(cause=Cause.SUBMITTED, phase="eval")
    assert classify(submitted, reward=1.0) is TerminationClass.RESOLVED
    assert classify(submitted, reward=0.0) is TerminationClass.WRONG_ANSWER
    limit = Ending(cause=Cause.STEP_LIMIT, phase="generation")
    assert classify(limit, reward=1.0) is TerminationClass.MAX_TURNS
