"""WorkItem: one episode's place and history in the scheduler; and the commands it is sent with."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NamedTuple

from agentflow.scheduling.stages import Stage

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


class AbortReason(StrEnum):
    """Why a generation is being aborted."""

    PREEMPTION = "preemption"
    WEIGHT_SYNC = "weight_sync"
    """Outranks a preemption that hit the same generation."""


@dataclass(slots=True, kw_only=True, eq=False)
class WorkItem:
    """One episode in the scheduler. Only the scheduler changes it."""

    episode: EpisodeId
    order: int
    """Arrival number; lower came earlier."""
    stage: Stage = Stage.NEW
    high: bool = False
    """Gets slots first and may preempt a low generation."""
    rank: float = 0.0
    queued_at: float = 0.0
    """When it entered the queue it is in (seconds of the caller's clock)."""
    ticket: int = 0
    """Its entry in that queue; older entries are void."""
    generations: int = 0
    """Generations dispatched; tags predictions, so that stale ones are recognised."""
    preemptions: int = 0
    aborting: AbortReason | None = None
    """Set from the abort's command to the end of that generation."""
    slot_for: WorkItem | None = None
    """The waiting item that this one's slot is promised to."""
    slot_from: WorkItem | None = None
    """The generation that is being aborted for this item."""
    predicted: float | None = field(default=None)
    """Predicted tokens still to generate."""


class CommandKind(StrEnum):
    """What the worker is to do."""

    START = "start"
    GENERATE = "generate"
    ABORT = "abort"
    ACT = "act"
    JUDGE = "judge"


class Command(NamedTuple):
    """One order; its end must be told by an event."""

    kind: CommandKind
    item: WorkItem
