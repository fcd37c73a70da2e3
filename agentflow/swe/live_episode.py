"""LiveEpisode: one episode of a flow that schedules actions, until its end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from agentflow.scheduling import WorkItem
    from agentflow.swe.sample import SWESample
    from agentflow.types import RolloutSample


@dataclass(slots=True, kw_only=True, eq=False)
class LiveEpisode:
    """Its place in the scheduler, its samples, and the task that waits for its turns."""

    item: WorkItem
    sample: SWESample
    dc_sample: RolloutSample
    task: asyncio.Task[None]
    """What it lives in."""
    turn: asyncio.Future[None]
    """Comes true when the scheduler dispatches it."""
    bug: BaseException | None = None
    """Of something that ran beside it; it ends by it."""

    def end_by(self, bug: BaseException) -> None:
        """Cut it short wherever it is; its caller gets `bug`."""
        if self.bug is None:
            self.bug = bug
            self.task.cancel()
