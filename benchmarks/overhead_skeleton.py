"""The least that asyncio needs for the same queues: what a flow's cost is compared with.

Every episode is a caller that waits on a future; every action is a task that is taken out of the
queue of its stage when that stage has a place free (a semaphore for each, as every stage has its
own limit), awaits the same instant engine or environment as the full flow does, and puts its
episode into the next queue. No state machine, priorities, identities, ledger, events, errors or
results; tokens go to a plain list.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from benchmarks.overhead_parts import InstantEngine, InstantEnv, InstantEnvs


class Skeleton:
    """Queues and tasks for a number of episodes."""

    def __init__(
        self, engine: InstantEngine, envs: InstantEnvs, *, generations: int, live: int
    ) -> None:
        self._engine = engine
        self._envs = envs
        self._new: asyncio.Queue[_Episode] = asyncio.Queue()
        self._pending: asyncio.Queue[_Episode] = asyncio.Queue()
        self._resume: asyncio.Queue[_Episode] = asyncio.Queue()
        self._env: asyncio.Queue[_Episode] = asyncio.Queue()
        self._rewards: asyncio.Queue[_Episode] = asyncio.Queue()
        self._slots = asyncio.Semaphore(generations)
        self._places = asyncio.Semaphore(live)
        self._starts, self._commands, self._verdicts = (asyncio.Semaphore(live) for _ in range(3))
        self._signal = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self.actions = 0

    async def run(self, episodes: int, turns: int) -> None:
        """Bring `episodes` through `turns` generations each."""
        async with asyncio.TaskGroup() as workers:
            loops = [
                self._processor(),
                self._each(self._new, self._start, self._starts),
                self._each(self._env, self._act, self._commands),
                self._each(self._rewards, self._judge, self._verdicts),
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
        limit: asyncio.Semaphore,
    ) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await limit.acquire()
            self._spawn(loop.create_task(action(await queue.get())))

    async def _start(self, episode: _Episode) -> None:
        episode.env = await self._envs.start(_SPEC)
        self._pending.put_nowait(episode)
        self._signal.set()
        self._starts.release()

    async def _generate(self, episode: _Episode) -> None:
        await self._engine.generate(None, episode)  # type: ignore[arg-type]
        episode.left -= 1
        (self._env if episode.left else self._rewards).put_nowait(episode)
        self._slots.release()

    async def _act(self, episode: _Episode) -> None:
        assert episode.env is not None
        await episode.env.execute("true")
        self._resume.put_nowait(episode)
        self._signal.set()
        self._commands.release()

    async def _judge(self, episode: _Episode) -> None:
        async with await self._envs.start(_SPEC) as env:
            await env.execute("true")
        assert episode.env is not None
        await episode.env.stop()
        episode.done.set_result(None)
        self._verdicts.release()


_SPEC = ContainerSpec()


class _Episode:
    __slots__ = ("done", "env", "left", "tokens")

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.env: InstantEnv | None = None
        self.tokens: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:  # noqa: ARG002  # TokenSink's
        """Take what the engine says."""
        self.tokens.extend(ids)
