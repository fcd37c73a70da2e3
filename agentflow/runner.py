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


class AsyncioRunner:
    """Production runner. Its pool and flow worker start on first use; `close` ends both."""

    def __init__(self, *, seed: int = 0, max_threads: int = MAX_THREADS) -> None:
        self._seed = seed
        self._max_threads = max_threads
        self._pool: ThreadPoolExecutor | None = None
        self._worker: _LoopThread | None = None

    def now(self) -> float:
        """Monotonic seconds of the running loop."""
        return asyncio.get_running_loop().time()

    def wall_time(self) -> float:
        """Seconds since the epoch."""
        return time.time()

    def random(self, name: str) -> random.Random:
        """Return a generator seeded by the run's seed and `name`."""
        return random.Random(f"{self._seed}/{name}")  # noqa: S311  # simulation, not secrets

    async def to_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` in the runner's own pool."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._max_threads, thread_name_prefix="agentflow")
        call = functools.partial(fn, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._pool, call)

    async def on_flow_worker(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the flow worker's loop.

        Cancelling the wait cancels it there, and waits until it has cleaned up.
        """
        if self._worker is None:
            self._worker = _LoopThread("agentflow-flow-worker")
        return await _on_loop(self._worker.loop, coro)

    def close(self) -> None:
        """End the threads. Idempotent; call it when nothing runs on them any more."""
        if self._worker is not None:
            self._worker.stop()
            self._worker = None
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None


async def _on_loop(loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, T]) -> T:
    here = asyncio.get_running_loop()
    outcome: asyncio.Future[asyncio.Task[T]] = here.create_future()
    started: list[asyncio.Task[T]] = []

    def ended(task: asyncio.Task[T]) -> None:
        here.call_soon_threadsafe(outcome.set_result, task)

    def start() -> None:
        started.append(loop.create_task(coro))
        started[0].add_done_callback(ended)

    def cancel() -> None:
        started[0].cancel()

    loop.call_soon_threadsafe(start)
    cancelled: asyncio.CancelledError | None = None
    while not outcome.done():
        try:
            await asyncio.wait([outcome])
        except asyncio.CancelledError as exc:
            cancelled = exc
            loop.call_soon_threadsafe(cancel)
    task = outcome.result()
    if cancelled is not None:
        failure = None if task.cancelled() else task.exception()
        raise cancelled from failure
    return task.result()


class _LoopThread:
    """A thread that runs an event loop until told to stop."""

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
