"""Where an episode can be, and which event moves it where: one table, nothing else decides."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """Where an item is; the first six wait in a queue, the next five hold a limited resource."""

    NEW = "new"
    """Waits for an environment."""
    PENDING = "pending"
    """Has an environment, waits for its first generation."""
    HP_RESUME = "hp_resume"
    LP_RESUME = "lp_resume"
    """Waits for its next generation."""
    ENV_QUEUED = "env_queued"
    """Waits to run its command."""
    REWARD_QUEUED = "reward_queued"
    """Waits to be judged."""
    STARTING = "starting"
    GENERATING = "generating"
    ACTING = "acting"
    FINALIZING = "finalizing"
    REWARDING = "rewarding"
    DONE = "done"
    """Has ended; out of the scheduler."""
    LEFT = "left"
    """Was interrupted by a weight sync; out of the scheduler, comes back as a new item."""


class Event(StrEnum):
    """What can happen to an item."""

    DISPATCHED = "dispatched"
    """A command of the scheduler took it out of a queue."""
    STARTED = "started"
    NEEDS_GENERATION = "needs_generation"
    """The step ended and asks for a generation (also: a preempted one asks to go on)."""
    NEEDS_ENV_STEP = "needs_env_step"
    TERMINATED = "terminated"
    FINALIZED = "finalized"
    """The result is read, the environment is gone; it is to be judged."""
    FINALIZED_UNJUDGED = "finalized_unjudged"
    """The same, but there is nothing to judge."""
    REWARDED = "rewarded"
    INTERRUPTED = "interrupted"
    """A weight sync took it out in mid-generation."""
    FAILED = "failed"
    """It cannot go on, wherever it was."""


class IllegalTransition(Exception):
    """An event that the table does not allow; nothing was changed."""


FOR_GENERATION: Final = (Stage.HP_RESUME, Stage.LP_RESUME, Stage.PENDING)
"""The queues a generation slot is filled from, in order."""
LIVE_WAITING: Final = (Stage.HP_RESUME, Stage.LP_RESUME, Stage.ENV_QUEUED)
LIVE_IN_FLIGHT: Final = (Stage.GENERATING, Stage.ACTING, Stage.FINALIZING)
"""Together: what counts as a live episode."""
WAITING: Final = (Stage.NEW, Stage.PENDING, *LIVE_WAITING, Stage.REWARD_QUEUED)
IN_FLIGHT: Final = (Stage.STARTING, *LIVE_IN_FLIGHT, Stage.REWARDING)
OUT: Final = (Stage.DONE, Stage.LEFT)

RESUME: Final = Stage.LP_RESUME
"""Stands in the table for either resume queue; the item's class picks which."""

_MOVES: Final = {
    (Stage.NEW, Event.DISPATCHED): Stage.STARTING,
    (Stage.STARTING, Event.STARTED): Stage.PENDING,
    (Stage.PENDING, Event.DISPATCHED): Stage.GENERATING,
    (Stage.HP_RESUME, Event.DISPATCHED): Stage.GENERATING,
    (Stage.LP_RESUME, Event.DISPATCHED): Stage.GENERATING,
    (Stage.GENERATING, Event.NEEDS_GENERATION): RESUME,
    (Stage.GENERATING, Event.NEEDS_ENV_STEP): Stage.ENV_QUEUED,
    (Stage.GENERATING, Event.TERMINATED): Stage.FINALIZING,
    (Stage.GENERATING, Event.INTERRUPTED): Stage.LEFT,
    (Stage.ENV_QUEUED, Event.DISPATCHED): Stage.ACTING,
    (Stage.ACTING, Event.NEEDS_GENERATION): RESUME,
    (Stage.ACTING, Event.TERMINATED): Stage.FINALIZING,
    (Stage.FINALIZING, Event.FINALIZED): Stage.REWARD_QUEUED,
    (Stage.FINALIZING, Event.FINALIZED_UNJUDGED): Stage.DONE,
    (Stage.REWARD_QUEUED, Event.DISPATCHED): Stage.REWARDING,
    (Stage.REWARDING, Event.REWARDED): Stage.DONE,
}
TRANSITIONS: Final = _MOVES | {
    (stage, Event.FAILED): Stage.DONE for stage in Stage if stage not in OUT
}


def target(stage: Stage, event: Event) -> Stage:
    """Where `event` moves an item at `stage`. Raises IllegalTransition."""
    try:
        return TRANSITIONS[stage, event]
    except KeyError:
        raise IllegalTransition(f"event {event} is not allowed at stage {stage}") from None
