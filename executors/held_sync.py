"""HeldSync: a weight sync that stands open while the trainer itself replaces the weights."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.types import SyncMode
    from executors.weight_sync import WeightSync


class HeldSync:
    """A weight sync that lasts from `begin` to `end`."""

    def __init__(self, sync: WeightSync, mode: SyncMode) -> None:
        self._sync = sync
        self._mode = mode
        self._go_on = asyncio.Event()
        self._paused = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._run: asyncio.Task[Any] | None = None

    async def begin(self) -> None:
        """Return when generations stand still; raises what kept them from it."""
        self._run = self._loop.create_task(self._sync.run(self._mode, self._until_resumed))
        reached = self._loop.create_task(self._paused.wait())
        try:
            await asyncio.wait([self._run, reached], return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self._run.cancel()
            await asyncio.wait([self._run])
            raise
        finally:
            reached.cancel()
        if self._run.done():
            await self._run

    async def end(self) -> None:
        """Go on; raises what failed in doing so."""
        assert self._run is not None
        self._go_on.set()
        await self._run

    async def _until_resumed(self) -> None:
        """Stand in for the update, on the flow worker: the trainer does it itself."""
        self._loop.call_soon_threadsafe(self._paused.set)
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._go_on.wait(), self._loop))
