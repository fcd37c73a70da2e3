"""WorkBeside: aborts and predictions that run beside the episodes which they are about.

Owns their tasks. A bug in one ends its episode, and no other; after that it is logged.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING

from agentflow.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Container, Coroutine

    from agentflow.engine.turns import TurnModel
    from agentflow.scheduling import WorkItem
    from agentflow.swe.live_episode import LiveEpisode

logger = logging.getLogger(__name__)


class WorkBeside:
    """What runs beside the episodes of one flow."""

    def __init__(self, live: Container[WorkItem]) -> None:
        """`live`: those who can still end by a bug."""
        self._live = live
        self._tasks: set[asyncio.Task[None]] = set()

    def run(self, episode: LiveEpisode, work: Coroutine[None, None, None]) -> None:
        """Begin `work` about an episode, on the loop that runs."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ran, episode))

    def abort(self, episode: LiveEpisode) -> None:
        """Ask the engine to abort an episode's generation."""
        assert episode.sample.model is not None
        self.run(episode, _ask_to_abort(episode.sample.model))

    async def close(self) -> None:
        """Cancel what is under way, and wait for its end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ran(self, episode: LiveEpisode, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (bug := task.exception()) is None:
            return
        if episode.item in self._live:
            episode.end_by(bug)
        else:
            logger.error("%s: a bug beside it, after its end", episode.sample.episode, exc_info=bug)


async def _ask_to_abort(model: TurnModel) -> None:
    try:
        await model.abort()
    except EngineError as exc:  # then the generation itself ends, or fails, and says so
        logger.warning("an abort could not be sent: %s", exc)
