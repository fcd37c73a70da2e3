"""Doing: what an episode is doing, as its events tell; one table, nothing else decides.

Both executors emit the same events, so the table knows of no executor: where one of them does not
make an episode wait, the wait is 0 seconds long.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agentflow.types import StepStatus

if TYPE_CHECKING:
    from agentflow.observe.records import EventRecord


class Doing(StrEnum):
    """What an episode does, or waits for."""

    QUEUED = "queued"
    """Waits for a worker that has room for it."""
    WAITS_START = "waits_start"
    """Waits for an environment."""
    STARTING = "starting"
    """Its environment starts."""
    WAITS_GENERATION = "waits_generation"
    GENERATING = "generating"
    WAITS_COMMAND = "waits_command"
    COMMAND = "command"
    """Its command runs."""
    ENDING = "ending"
    """Its result is read, its environment removed; or it is handed over."""
    WAITS_REWARD = "waits_reward"
    REWARDING = "rewarding"
    INTERRUPTED = "interrupted"
    """By a weight update; it goes on first."""
    ENDED = "ended"


WAITS: Final = {
    Doing.QUEUED: "admission",
    Doing.WAITS_START: "start",
    Doing.WAITS_GENERATION: "generation",
    Doing.WAITS_COMMAND: "command",
    Doing.WAITS_REWARD: "reward",
}
"""What an episode waits for, by name of the stage that it waits before."""

SERVED: Final = {
    (Doing.QUEUED, Doing.WAITS_START),
    (Doing.WAITS_START, Doing.STARTING),
    (Doing.WAITS_GENERATION, Doing.GENERATING),
    (Doing.WAITS_COMMAND, Doing.COMMAND),
    (Doing.WAITS_REWARD, Doing.REWARDING),
}
"""Ways in which a wait ends by getting what was waited for."""

_AFTER: Final = {
    "issued": Doing.QUEUED,
    "given_back": Doing.QUEUED,
    "leased": Doing.WAITS_START,
    "restarted_clean": Doing.WAITS_START,
    "env_starting": Doing.STARTING,
    "env_started": Doing.WAITS_GENERATION,
    "resumed": Doing.WAITS_GENERATION,
    "preempted": Doing.WAITS_GENERATION,
    "generation_started": Doing.GENERATING,
    "command_started": Doing.COMMAND,
    "env_stopped": Doing.WAITS_REWARD,
    "reward_started": Doing.REWARDING,
    "reward_ended": Doing.ENDING,
    "failed": Doing.ENDING,
    "interrupted": Doing.INTERRUPTED,
    "ended": Doing.ENDED,
    "dropped": Doing.ENDED,
}
_AFTER_STEP: Final = {
    StepStatus.NEEDS_GENERATION: Doing.WAITS_GENERATION,
    StepStatus.NEEDS_ENV_STEP: Doing.WAITS_COMMAND,
    StepStatus.TERMINATED: Doing.ENDING,
    StepStatus.ABORTED: Doing.ENDING,
}
_STEPS: Final = {"generation_ended", "command_ended"}


def after(event: EventRecord, *, failed: bool) -> Doing | None:
    """What the event's episode does from now on; None: the event changes nothing about that.

    `failed` says that it failed before, so that there is nothing to judge.
    """
    if event.kind in _STEPS:
        return _AFTER_STEP.get(event.facts["status"])
    if failed and event.kind == "env_stopped":
        return Doing.ENDING
    return _AFTER.get(event.kind)
