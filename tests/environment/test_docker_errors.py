"""What can go wrong with a container: each error's cause, phase, and whose doing it was."""

from __future__ import annotations

import pytest

from agentflow.errors import ContainerKilled, EpisodeError
from agentflow.swe.environment.docker import errors
from agentflow.types import Blame, Cause


@pytest.mark.parametrize(
    ("error", "cause", "phase", "blame"),
    [
        (errors.EngineUnavailable, Cause.ENV_START_FAILED, "start", Blame.INFRASTRUCTURE),
        (errors.ImageMissing, Cause.ENV_START_FAILED, "start", Blame.INFRASTRUCTURE),
        (errors.StartTimedOut, Cause.ENV_START_FAILED, "start", Blame.INFRASTRUCTURE),
        (errors.EngineGone, Cause.ENV_DIED, "command", Blame.INFRASTRUCTURE),
        (errors.ContainerDied, Cause.ENV_DIED, "command", Blame.INFRASTRUCTURE),
        (errors.OutOfMemory, Cause.OUT_OF_MEMORY, "command", Blame.POLICY),
        (ContainerKilled, Cause.CONTAINER_KILLED, "command", Blame.POLICY),
    ],
)
def test_each_error_says_where_and_whose(
    error: type[EpisodeError], cause: Cause, phase: str, blame: Blame
) -> None:
    """So that a sample is scored or masked by its type alone."""
    ending = error("why").ending()
    assert (ending.cause, ending.phase, ending.message) == (cause, phase, "why")
    assert ending.cause.blame is blame
