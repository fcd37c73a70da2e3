"""WeightSync: new weights into running engines, and everything goes on afterwards.

    executors stop dispatching ▶ flows pause generations ▶ engines pause ▶ update ▶ and back again

Owns the order of the steps, and that whatever was paused is resumed, whichever step failed. It
waits for generations alone: starts, commands and rewards go on, and a new version number by itself
aborts nothing.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agentflow.aio import shielded
from agentflow.observe.events import NullEvents

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from agentflow.protocols import EngineAdmin, EventSink, Runner
    from agentflow.types import SyncMode


class Pausable(Protocol):
    """An executor, or the worker that runs one."""

    def pause_dispatch(self) -> None:
        """Start no new sample."""
        ...

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        ...

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start; return when the mode's condition for an update holds."""
        ...

    async def resume_generations(self) -> None:
        """Dispatch generations again."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncReport:
    """How long a weight update took, in seconds of the loop's clock."""

    mode: SyncMode
    pause_s: float
    """Until no generation was in the way."""
    update_s: float
    total_s: float
    """Until everything went on."""


class WeightSync:
    """Updates the weights of `engines`, whose episodes `workers` drive. One update at a time."""

    def __init__(
        self,
        workers: Sequence[Pausable],
        engines: Sequence[EngineAdmin],
        *,
        runner: Runner,
        events: EventSink | None = None,
    ) -> None:
        """Engines live on the runner's flow worker, and are called there."""
        self._workers = workers
        self._engines = engines
        self._runner = runner
        self._events = events if events is not None else NullEvents()
        self._one_at_a_time = asyncio.Lock()

    async def run(self, mode: SyncMode, update: Callable[[], Awaitable[None]]) -> SyncReport:
        """Pause, call `update` on the flow worker, and resume.

        Raises what the failed step raised; failures of resuming come with it as notes, or alone if
        nothing failed before. Cancelling it resumes everything as well.
        """
        async with self._one_at_a_time:
            began = self._runner.now()
            self._events.emit("sync_started", mode=mode)
            paused = updated = began
            ok = False
            try:
                async with AsyncExitStack() as stack:
                    undo = _Undo()
                    stack.push_async_exit(undo.unwind)
                    await self._pause(mode, undo)
                    paused = self._runner.now()
                    self._events.emit("sync_paused")
                    await self._on_flow_worker(update)()
                    updated = self._runner.now()
                    self._events.emit("sync_updated")
                ok = True
            finally:
                self._events.emit("sync_ended", mode=mode, ok=ok)
            return SyncReport(
                mode=mode,
                pause_s=paused - began,
                update_s=updated - paused,
                total_s=self._runner.now() - began,
            )

    async def _pause(self, mode: SyncMode, undo: _Undo) -> None:
        for worker in self._workers:
            undo.later(_sync(worker.resume_dispatch))
            worker.pause_dispatch()
        for worker in self._workers:
            undo.later(worker.resume_generations)
        await _all([worker.pause_generations(mode) for worker in self._workers])
        for engine in self._engines:
            undo.later(self._on_flow_worker(engine.resume))
        await _all([self._on_flow_worker(partial(e.pause, mode))() for e in self._engines])

    def _on_flow_worker(self, call: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        async def called() -> None:
            await self._runner.on_flow_worker(_awaited(call))

        return called


class _Undo:
    """What must be called to go on, last first; each is called, whatever the others do."""

    def __init__(self) -> None:
        self._calls: list[Callable[[], Awaitable[None]]] = []

    def later(self, call: Callable[[], Awaitable[None]]) -> None:
        self._calls.append(call)

    async def unwind(self, _kind: object, failed: BaseException | None, _tb: object) -> None:
        failures = await shielded(self._call_all())
        first = failed or (failures.pop(0) if failures else None)
        for failure in failures:
            assert first is not None
            first.add_note(f"and resuming failed: {type(failure).__name__}: {failure}")
        if failed is None and first is not None:
            raise first

    async def _call_all(self) -> list[BaseException]:
        ends = [
            (await asyncio.gather(call(), return_exceptions=True))[0]
            for call in reversed(self._calls)
        ]
        return [end for end in ends if isinstance(end, BaseException)]


async def _all(steps: Sequence[Awaitable[None]]) -> None:
    """Let every step come to its end, then raise the first failure, the others as its notes."""
    ends = await asyncio.gather(*steps, return_exceptions=True)
    failures = [end for end in ends if isinstance(end, BaseException)]
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"and beside it: {type(other).__name__}: {other}")
        raise failures[0]


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()


def _sync(call: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def called() -> None:
        call()

    return called
