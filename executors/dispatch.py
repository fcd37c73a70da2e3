"""Dispatch: takes samples from a source while slots are free, and rolls each out in a task.

Owns the slots, the pause and the stop; both executors stand on it. A slot is taken before a sample,
so that a worker never holds one that another could run; a sample that cannot be begun any more is
given back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from executors.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.types import RolloutSample
    from executors.source import SampleSource


class Dispatch:
    """A loop over a source. `pause`, `resume`, `stop` and the figures are for any thread."""

    def __init__(
        self,
        source: SampleSource,
        rollout: Callable[[RolloutSample], Awaitable[None]],
        *,
        slots: int,
    ) -> None:
        """`slots` is how many samples are under way at once."""
        self._source = source
        self._rollout = rollout
        self._slots = asyncio.Semaphore(slots)
        self._changed = Wakeups()
        self._stopped = False
        self.paused = False
        """Whether new samples are held back."""
        self.running = 0
        """Samples under way."""

    def pause(self) -> None:
        """Start nothing new."""
        self.paused = True

    def resume(self) -> None:
        """Go on starting samples."""
        self.paused = False
        self._changed.tell()

    def stop(self) -> None:
        """Let `run` return once what it has started has ended."""
        self._stopped = True
        self._changed.tell()

    async def run(self) -> None:
        """Roll out until the source has none left, or `stop`.

        A bug in one sample cancels the others and is raised.
        """
        async with asyncio.TaskGroup() as tasks:
            while not self._stopped:
                await self._until_resumed()
                await self._slots.acquire()
                sample = await self._source.get_sample()
                if sample is None:
                    break
                if not await self._may_begin(sample):
                    break
                self.running += 1
                task = tasks.create_task(self._rolled_out(sample), name=str(sample.episode))
                task.add_done_callback(self._release)

    async def _until_resumed(self) -> None:
        while self._held():
            waiter = self._changed.waiter()
            if self._held():  # still so after the waiter was made: a change from now on wakes it
                await waiter.wait()

    def _held(self) -> bool:
        return self.paused and not self._stopped

    async def _may_begin(self, sample: RolloutSample) -> bool:
        """Wait out a pause that came while waiting for the sample; False: stopped meanwhile."""
        begin = False
        try:
            await self._until_resumed()
            begin = not self._stopped
        finally:
            if not begin:
                self._source.give_back(sample)
        return begin

    async def _rolled_out(self, sample: RolloutSample) -> None:
        await self._rollout(sample)

    def _release(self, _task: asyncio.Task[None]) -> None:
        self.running -= 1
        self._slots.release()
