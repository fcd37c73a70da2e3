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
import heapq
import itertools
import math
import random
import threading
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from agentflow.aio import SHIELDED
from agentflow.errors import AgentflowError

if TYPE_CHECKING:
    from collections import deque
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

    _scheduled: list[asyncio.TimerHandle]
    """BaseEventLoop's heap of timers."""
    _ready: deque[asyncio.Handle]
    """BaseEventLoop's queue of what runs next."""

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0
        self._selector = self  # BaseEventLoop asks `_selector.select` how to wait
        self._births = itertools.count(1)
        self._serials = itertools.count(1)
        self._owner = threading.get_ident()
        self.on_resume: Callable[[NumberedTask[Any]], None] | None = None
        """Told of every task that is about to go on from an await; may cancel it there."""
        self.set_task_factory(_numbered_task)

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return self._now

    def next_birth(self) -> int:
        """Return the number of the next task."""
        return next(self._births)

    def select(self, timeout: float | None) -> list[Any]:
        """Jump to the next timer where a selector would wait; None: there is none."""
        if timeout is None or (timeout and math.isinf(self._scheduled[0].when())):
            raise Deadlock(_deadlock_message(self))
        if timeout:
            self._now = self._scheduled[0].when()
            self._clock_resolution = math.ulp(self._now)  # only what is due now runs, however late
        return []

    def call_at(  # type: ignore[override]  # typeshed's variadic generics
        self, when: float, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        """Schedule; a time in the past is now, infinity is never. Raises ValueError for NaN.

        What is due at one time runs in the order in which it was scheduled; asyncio's own timers
        come out of its heap in any.
        """
        if math.isnan(when):
            raise ValueError(f"{callback!r} cannot be called at {when} s")
        timer = _Timer(when, callback, args, self, context)
        timer.serial = next(self._serials)
        timer._scheduled = True  # type: ignore[attr-defined]  # noqa: SLF001  # as BaseEventLoop has it
        heapq.heappush(self._scheduled, timer)
        return timer

    def call_soon(  # type: ignore[override]  # typeshed's variadic generics
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Schedule; a task's own callbacks are how asyncio resumes it."""
        if self.on_resume is not None:
            task = getattr(callback, "__self__", None)
            if isinstance(task, NumberedTask) and not task.done() and task.suspended:
                self.on_resume(task)
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

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


class _Timer(asyncio.TimerHandle):
    """A timer that comes after those that were set before it for the same time."""

    __slots__ = ("serial",)
    serial: int
    _when: float

    def __lt__(self, other: object) -> bool:
        assert isinstance(other, _Timer)
        mine, theirs = self._when, other._when
        return mine < theirs or (mine == theirs and self.serial < other.serial)


class NumberedTask(asyncio.Task[T]):
    """A task that hashes by its birth, so that sets of tasks iterate alike in every process."""

    def __init__(self, coro: Coroutine[Any, Any, T], *, loop: VirtualLoop, **options: Any) -> None:
        self._birth = loop.next_birth()
        parent = asyncio.current_task(loop)
        self._in_shield = isinstance(parent, NumberedTask) and parent.shielded
        super().__init__(coro, loop=loop, **options)

    @property
    def shielded(self) -> bool:
        """Whether it belongs to work that cancellation may not cut short (`aio.shielded`)."""
        return self._in_shield or self.get_name() == SHIELDED

    @property
    def suspended(self) -> bool:
        """Whether it stands at an await: it has begun, and does not run now."""
        return getattr(self.get_coro(), "cr_await", None) is not None

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
    results = list[T]()

    async def keep() -> None:  # a result of `main` itself is printed, in full, by asyncio.Runner
        results.append(await main)

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(keep())
    return results[0]


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
