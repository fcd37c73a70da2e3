"""WorkItem: one episode's place and history in the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.scheduling.stages import AbortReason, Stage
from priority.policies import Standing

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


@dataclass(slots=True, kw_only=True, eq=False)
class WorkItem(Standing):
    """One episode in the scheduler, as policies see it and more. Only the scheduler changes it."""

    episode: EpisodeId
    arrived_at: float = 0.0
    """When it was submitted."""
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
    """Set from the abort to the end of that generation."""
    partner: WorkItem | None = None
    """Of an item that waits for a slot: the generation being aborted for it; and the reverse."""
    told: float | None = None
    """Tokens still to generate, as predicted after its last generation that was."""
