"""Nursery: the parent of what must run on when its caller is cancelled.

`builder.close()` waits for all of it, so nothing outlives the builder and no failure is lost. An
`asyncio.TaskGroup` cannot do it: its block would have to begin and end in one task, and a builder
has no block.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Coroutine

T = TypeVar("T")
log = logging.getLogger(__name__)


class Nursery:
    """Tasks that belong to a builder, not to a caller."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T], *, name: str) -> asyncio.Task[T]:
        """Run `work` beside the caller."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def shielded(self, work: Coroutine[Any, Any, T], *, name: str) -> T:
        """Await `work`; cancelling the wait leaves it running to its end."""
        return await asyncio.shield(self.start(work, name=name))

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.debug("%s ended with %r", task.get_name(), error)

    async def wait(self) -> None:
        """Wait until nothing runs; their errors are their callers' business."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))
