"""AsyncioRunner: the wall clock, real threads and seeded chance behind the `Runner` protocol."""

from __future__ import annotations

import asyncio
import functools
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

MAX_THREADS = 64
"""asyncio's default pool has cores + 4: on two cores, 24 blocking calls took four times as long."""

_FLOW_WORKER = "flow-worker"


class AsyncioRunner:
    """Production runner, callable from any thread; `close` ends the threads it has started."""

    now = staticmethod(time.monotonic)
    """Seconds, which are those of every asyncio loop."""

    wall_time = staticmethod(time.time)
    """Seconds since the epoch."""

    def __init__(self, *, seed: int = 0, max_threads: int = MAX_THREADS) -> None:
        self._seed = seed
        self._max_threads = max_threads
        self._pool: ThreadPoolExecutor | None = None
        self._workers: dict[str, LoopThread] = {}
        self._lock = threading.Lock()

    def random(self, name: str) -> random.Random:
        """Return a generator seeded by the run's seed and `name`."""
        return random.Random(f"{self._seed}/{name}")  # noqa: S311  # simulation, not secrets

    async def to_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in the runner's own pool."""
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix="agentflow")
        call = functools.partial(fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def on_flow_worker(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the flow worker's loop; returns when it has ended there."""
        return await self.on_worker(_FLOW_WORKER, coro)

    async def on_worker(self, name: str, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the loop of the worker `name`; returns when it has ended there."""
        with self._lock:
            worker = self._workers.get(name)
            if worker is None:
                worker = self._workers[name] = LoopThread(f"agentflow-{name}")
        if worker.loop is asyncio.get_running_loop():
            return await coro
        return await _elsewhere(coro, worker.loop)

    def close(self) -> None:
        """End the threads. Idempotent; call it when nothing runs on them any more."""
        with self._lock:
            workers, self._workers = list(self._workers.values()), {}
            pool, self._pool = self._pool, None
        for worker in workers:
            worker.stop()
        if pool is not None:
            pool.shutdown(wait=True, cancel_futures=True)


async def _elsewhere(coro: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Await `coro` in a task of another thread's loop, as if it were awaited here."""
    here = asyncio.get_running_loop()
    ended: asyncio.Future[asyncio.Task[T]] = here.create_future()
    begun: list[asyncio.Task[T]] = []

    def begin() -> None:
        task = loop.create_task(coro)
        begun.append(task)
        task.add_done_callback(lambda task: here.call_soon_threadsafe(ended.set_result, task))

    def cancel() -> None:
        begun[0].cancel()

    loop.call_soon_threadsafe(begin)
    cancelled: asyncio.CancelledError | None = None
    while not ended.done():
        try:
            await asyncio.wait([ended])
        except asyncio.CancelledError as exc:
            cancelled = exc
            loop.call_soon_threadsafe(cancel)
    task = ended.result()
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise cancelled from failure
        raise cancelled
    return task.result()


class LoopThread:
    """A thread that runs an event loop until told to stop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it; nothing may run on the loop any more."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
