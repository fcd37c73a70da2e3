"""VirtualLoop and VirtualRunner: asyncio on a clock that jumps to the next timer.

Owns virtual time. Never sleeps, opens a file descriptor or starts a thread. Invariants: time moves
only when nothing is ready; the same seed gives the same interleaving in every process; when
nothing is ready and no timer is set, the loop raises and names what waits, instead of hanging.

Why not async-solipsism (0.10): its threads run in real time beside virtual time, so a result's
place among the events is chance; its deadlock error names nothing; and tasks hash by address, so
that `TaskGroup` and `asyncio.wait`, which iterate over sets, order them anew in each process.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agentflow.errors import AgentflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")

EPOCH_S = 1_767_225_600.0
"""Wall time of virtual second 0 (2026-01-01 UTC), so that records of two runs are equal."""

_NAMED_WAITERS = 20
"""Waiting tasks named in a deadlock's message; the rest are counted."""


class Deadlock(AgentflowError):
    """Nothing is ready and no timer is set: what waits can never go on."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop whose time is a number. For `asyncio.Runner(loop_factory=VirtualLoop)`."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # BaseEventLoop asks `_selector.select` how to wait
        self._births = itertools.count(1)
        self._owner = threading.get_ident()
        self.set_task_factory(_numbered_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def next_birth(self) -> int:
        """Return the number of the next task."""
        return next(self._births)

    def select(self, timeout: float | None) -> list[Any]:
        """Jump over `timeout`, where a selector would wait; it is None when nothing can come."""
        if timeout is None:
            raise Deadlock(_deadlock_message(self))
        self._now += max(timeout, 0.0)
        return []

    def call_soon_threadsafe(  # type: ignore[override]  # typeshed's variadic generics
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule from this thread (signal handlers do); other threads have no place in time."""
        if threading.get_ident() != self._owner:
            raise RuntimeError("a thread reached into virtual time: use Runner.to_thread instead")
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]  # typeshed's variadic generics
        self,
        executor: Any,  # noqa: ARG002  # asyncio's signature
        func: Callable[..., Any],
        *args: Any,  # noqa: ARG002  # asyncio's signature
    ) -> Any:
        """Refuse: a real thread would end at a random virtual time."""
        raise RuntimeError(f"{func!r} asks for a thread: use Runner.to_thread in virtual time")

    def _process_events(self, event_list: list[Any]) -> None:
        """Nothing outside the loop sends events."""

    def _write_to_self(self) -> None:
        """Nothing waits that would need waking."""


class NumberedTask(asyncio.Task[T]):
    """A task that hashes by its birth, so that sets of tasks iterate alike in every process."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: VirtualLoop, **options: Any) -> None:
        self._birth = loop.next_birth()
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._birth

    def __eq__(self, other: object) -> bool:
        return self is other


def _numbered_task(loop: Any, coro: Any, **options: Any) -> NumberedTask[Any]:
    return NumberedTask(coro, loop=loop, **options)


class VirtualRunner:
    """Runner in virtual time: threads run inline, the flow worker is this loop."""

    def __init__(self, *, seed: int = 0) -> None:
        self._seed = seed

    def now(self) -> float:
        """Virtual seconds of the running loop."""
        return asyncio.get_running_loop().time()

    def wall_time(self) -> float:
        """Virtual seconds since the epoch."""
        return EPOCH_S + self.now()

    def random(self, name: str) -> random.Random:
        """Return a generator seeded by the run's seed and `name`."""
        return random.Random(f"{self._seed}/{name}")  # noqa: S311  # simulation, not secrets

    async def to_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `fn` inline, after everything that is ready now."""
        await asyncio.sleep(0)
        return functools.partial(fn, *args, **kwargs)()

    async def on_flow_worker(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` here."""
        return await coro

    async def on_worker(self, name: str, coro: Coroutine[Any, Any, T]) -> T:  # noqa: ARG002  # Runner's
        """Run `coro` here."""
        return await coro

    def close(self) -> None:
        """Nothing to release."""


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run `main` to its end on a new virtual loop. Raises Deadlock when it can never end."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


def _deadlock_message(loop: VirtualLoop) -> str:
    tasks = sorted(asyncio.all_tasks(loop), key=hash)
    waiting = [f"{task.get_name()} at {_where(task)}" for task in tasks[:_NAMED_WAITERS]]
    more = f" and {len(tasks) - _NAMED_WAITERS} more" if len(tasks) > _NAMED_WAITERS else ""
    return (
        f"nothing is ready and no timer is set at {loop.time():.3f} s; "
        f"{len(tasks)} tasks wait: {'; '.join(waiting)}{more}"
    )


def _where(task: asyncio.Task[Any]) -> str:
    """Name the innermost coroutine that `task` is suspended in, and its line."""
    inner: Any = task.get_coro()
    place = "?"
    while inner is not None:
        frame = getattr(inner, "cr_frame", None) or getattr(inner, "gi_frame", None)
        if frame is None:
            break
        place = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
        inner = getattr(inner, "cr_await", None) or getattr(inner, "gi_yieldfrom", None)
    return place
