"""Where an episode can be, and which event moves it where: one table, nothing else decides."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """Where an item is: six stages that wait in a queue, five that hold a resource, two ends."""

    NEW = "new"
    """Waits for an environment."""
    PENDING = "pending"
    """Has an environment, waits for its first generation, or for KV memory."""
    REWARD_QUEUED = "reward_queued"
    """Waits to be judged."""
    RESUMING = "resuming"
    """Waits for its next generation, the high ones (hp) before the low ones (lp)."""
    PROMISED = "promised"
    """The same, and a generation is being aborted for it: that slot is its own."""
    ENV_QUEUED = "env_queued"
    """Waits to run its command."""
    GENERATING = "generating"
    ACTING = "acting"
    FINALIZING = "finalizing"
    """Its result is read and its environment removed; or that is let go until it comes back."""
    STARTING = "starting"
    REWARDING = "rewarding"
    DONE = "done"
    """Has ended; out of the scheduler."""
    LEFT = "left"
    """Was interrupted by a weight sync; out of the scheduler, comes back as a new item."""


class Event(StrEnum):
    """What can happen to an item."""

    DISPATCHED = "dispatched"
    """The scheduler took it out of a queue: its action begins."""
    PREEMPTS = "preempts"
    """The scheduler aborts a generation for it."""
    PARKED = "parked"
    """The engine's KV memory is too small for those inside: it gives its context up, and waits."""
    STARTED = "started"
    NEEDS_GENERATION = "needs_generation"
    """The step ended and asks for a generation (also: a preempted one asks to go on)."""
    NEEDS_ENV_STEP = "needs_env_step"
    TERMINATED = "terminated"
    FINALIZED = "finalized"
    """The result is read, the environment is gone; it is to be judged."""
    REWARDED = "rewarded"
    """Its reward is known: it was judged, or there was nothing to judge."""
    INTERRUPTED = "interrupted"
    """A weight sync ended its generation; and then: its environment is let go."""
    FAILED = "failed"
    """It cannot go on, wherever it was."""


class AbortReason(StrEnum):
    """Why a generation is being aborted."""

    PREEMPTION = "preemption"
    WEIGHT_SYNC = "weight_sync"
    """Outranks a preemption that hit the same generation."""


class IllegalTransition(Exception):
    """An event that the table does not allow; nothing was changed."""


NEW, PENDING, REWARD_QUEUED, RESUMING, PROMISED, ENV_QUEUED = WAITING = tuple(Stage)[:6]
GENERATING, ACTING, FINALIZING, STARTING, REWARDING = IN_FLIGHT = tuple(Stage)[6:11]
DONE, LEFT = OUT = tuple(Stage)[11:]
"""Under names of their own: as attributes of an enumeration they are slow to look up."""
LIVE: Final = frozenset({RESUMING, PROMISED, ENV_QUEUED, GENERATING, ACTING, FINALIZING})
"""Between the first generation and the last command."""
FOR_GENERATION: Final = frozenset({RESUMING, PENDING})
"""What free slots are filled from: ranked on entering, and the oldest is known."""

TRANSITIONS: Final = {
    (NEW, Event.DISPATCHED): STARTING,
    (STARTING, Event.STARTED): PENDING,
    (PENDING, Event.DISPATCHED): GENERATING,
    (RESUMING, Event.DISPATCHED): GENERATING,
    (RESUMING, Event.PREEMPTS): PROMISED,
    (RESUMING, Event.PARKED): PENDING,
    (PROMISED, Event.DISPATCHED): GENERATING,
    (GENERATING, Event.NEEDS_GENERATION): RESUMING,
    (GENERATING, Event.NEEDS_ENV_STEP): ENV_QUEUED,
    (GENERATING, Event.TERMINATED): FINALIZING,
    (GENERATING, Event.INTERRUPTED): FINALIZING,
    (ENV_QUEUED, Event.DISPATCHED): ACTING,
    (ACTING, Event.NEEDS_GENERATION): RESUMING,
    (ACTING, Event.TERMINATED): FINALIZING,
    (FINALIZING, Event.FINALIZED): REWARD_QUEUED,
    (FINALIZING, Event.REWARDED): DONE,
    (FINALIZING, Event.INTERRUPTED): LEFT,
    (REWARD_QUEUED, Event.DISPATCHED): REWARDING,
    (REWARDING, Event.REWARDED): DONE,
} | {(stage, Event.FAILED): DONE for stage in (*WAITING, *IN_FLIGHT)}
