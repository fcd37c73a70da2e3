"""Dispatch: takes samples from a source while slots are free, and rolls each out in a task.

Owns the slots, the pause, the stop, and the end of samples that nobody wants any more; both
executors stand on it. A slot is taken before a sample, so that a worker never holds one that
another could run; a sample that cannot be begun any more is given back. A sample whose task alone
is cancelled ends as `cancelled`; when all are, as the run ends, the source hands them out again.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.outcomes import make_fallback
from agentflow.types import Cause, Ending
from executors.processing import post_process
from executors.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.types import EpisodeId, RolloutSample
    from executors.room import Room
    from executors.source import SampleSource


class Dispatch:
    """A loop over a source. `pause`, `resume`, `stop` and the figures are for any thread."""

    def __init__(
        self,
        source: SampleSource,
        rollout: Callable[[RolloutSample], Awaitable[None]],
        *,
        room: Room,
        let_go: Callable[[RolloutSample], Awaitable[None]],
    ) -> None:
        """`room` says how many samples are under way at once.

        `let_go` removes what an interrupted sample keeps, when it is withdrawn.
        """
        self._source = source
        self._rollout = rollout
        self._let_go = let_go
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._under_way: dict[EpisodeId, asyncio.Task[None] | None] = {}
        """None until the task takes its first step: one cancelled before that runs nothing."""
        self._unwanted: set[EpisodeId] = set()
        """Withdrawn, and not ended yet."""
        self._room = room
        self._changed = Wakeups()
        self._stopped = False
        self._task: asyncio.Task[None] | None = None
        self._failed = False
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

    def withdraw(self, sample: RolloutSample) -> None:
        """End a sample that nobody wants any more, and remove what it has."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._withdraw, sample)

    def is_judged(self, episode: EpisodeId) -> None:
        """Hear that a sample waits for its judge alone, so that another may be begun."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._is_judged, episode)

    def _is_judged(self, episode: EpisodeId) -> None:
        if episode in self._under_way:
            self._room.is_judged(episode)

    async def run(self) -> None:
        """Roll out until the source has none left, or `stop`.

        A bug in one sample cancels the others and is raised.
        """
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        try:
            await self._run()
        finally:
            self._tasks = None
            self.running = 0  # some may have been cancelled before they began

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                await self._begin_all(tasks)
            except BaseException:
                self._failed = True
                raise

    async def _begin_all(self, tasks: asyncio.TaskGroup) -> None:
        while not self._stopped:
            await self._until_resumed()
            await self._room.acquire()
            sample = await self._source.get_sample()
            if sample is None:
                break
            self._under_way[sample.episode] = None
            if not await self._may_begin(sample):
                break
            self.running += 1
            tasks.create_task(self._rolled_out(sample), name=str(sample.episode))

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
                del self._under_way[sample.episode]
                self._unwanted.discard(sample.episode)
                self._source.give_back(sample)
        return begin

    def _withdraw(self, sample: RolloutSample) -> None:
        if sample.episode not in self._under_way:  # it has come back meanwhile
            if sample.partial_agent_data is not None:
                self._remove(sample)
            return
        self._unwanted.add(sample.episode)
        if (task := self._under_way.get(sample.episode)) is not None:
            task.cancel()

    def _remove(self, sample: RolloutSample) -> None:
        if self._tasks is not None:  # else the flow is about to be closed, which removes everything
            self._tasks.create_task(_awaited(self._let_go(sample)), name=f"drop {sample.episode}")

    async def _rolled_out(self, sample: RolloutSample) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._under_way[sample.episode] = task
        try:
            if sample.episode not in self._unwanted:
                await self._rollout(sample)
        except asyncio.CancelledError:
            if self._all_end() or sample.episode in self._unwanted:
                raise
            await self._end_cancelled(sample)
        except BaseException:
            self._failed = True
            raise
        finally:
            self._ended(sample, task)

    def _all_end(self) -> bool:
        """Whether a cancellation is the whole run's."""
        return self._failed or (self._task is not None and self._task.cancelling() > 0)

    async def _end_cancelled(self, sample: RolloutSample) -> None:
        """End a sample that alone was cancelled; nobody else would return it."""
        if sample.ending is None:
            make_fallback(sample, _CANCELLED)
        post_process(sample)
        await self._source.put_data(sample)

    def _ended(self, sample: RolloutSample, task: asyncio.Task[None]) -> None:
        if self._under_way.get(sample.episode) is task:  # it may be under way again
            del self._under_way[sample.episode]
        self.running -= 1
        self._room.release(sample.episode)
        if sample.episode in self._unwanted:
            self._unwanted.remove(sample.episode)
            self._source.abandon(sample)
            if sample.partial_agent_data is not None:  # it was not begun again
                self._remove(sample)


_CANCELLED = Ending(
    cause=Cause.CANCELLED, phase="episode", message="the task that rolled it out was cancelled"
)


async def _awaited(work: Awaitable[None]) -> None:
    await work
