"""The least that asyncio needs for the same queues: what a flow's cost is compared with.

Every episode is a caller that waits on a future; every action is a task that is taken out of the
queue of its stage when a place is free, and puts its episode into the next one. No state machine,
priorities, identities, ledger, events, errors or results.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any


class Skeleton:
    """Queues and tasks for a number of episodes."""

    def __init__(self, *, generations: int, live: int) -> None:
        self._new: asyncio.Queue[_Episode] = asyncio.Queue()
        self._pending: asyncio.Queue[_Episode] = asyncio.Queue()
        self._resume: asyncio.Queue[_Episode] = asyncio.Queue()
        self._env: asyncio.Queue[_Episode] = asyncio.Queue()
        self._rewards: asyncio.Queue[_Episode] = asyncio.Queue()
        self._slots = asyncio.Semaphore(generations)
        self._places = asyncio.Semaphore(live)
        self._signal = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.actions = 0

    async def run(self, episodes: int, turns: int) -> None:
        """Bring `episodes` through `turns` generations each."""
        async with asyncio.TaskGroup() as workers:
            loops = [
                self._processor(),
                self._each(self._new, self._start),
                self._each(self._env, self._act),
                self._each(self._rewards, self._judge),
            ]
            tasks = [workers.create_task(loop) for loop in loops]
            async with asyncio.TaskGroup() as group:
                for _ in range(episodes):
                    await self._places.acquire()
                    group.create_task(self._submit(turns)).add_done_callback(self._left)
            for task in tasks:
                task.cancel()

    def _left(self, _task: asyncio.Task[None]) -> None:
        self._places.release()

    async def _submit(self, turns: int) -> None:
        episode = _Episode(turns)
        self._new.put_nowait(episode)
        await episode.done

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self.actions += 1
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _processor(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._slots.acquire()
            while self._resume.empty() and self._pending.empty():
                self._signal.clear()
                await self._signal.wait()
            queue = self._pending if self._resume.empty() else self._resume
            self._spawn(loop.create_task(self._generate(queue.get_nowait())))

    async def _each(
        self,
        queue: asyncio.Queue[_Episode],
        action: Callable[[_Episode], Coroutine[Any, Any, None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            self._spawn(loop.create_task(action(await queue.get())))

    async def _start(self, episode: _Episode) -> None:
        self._pending.put_nowait(episode)
        self._signal.set()

    async def _generate(self, episode: _Episode) -> None:
        episode.left -= 1
        (self._env if episode.left else self._rewards).put_nowait(episode)
        self._slots.release()

    async def _act(self, episode: _Episode) -> None:
        self._resume.put_nowait(episode)
        self._signal.set()

    async def _judge(self, episode: _Episode) -> None:
        episode.done.set_result(None)


class _Episode:
    __slots__ = ("done", "left")

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
