"""SimulatedEngine: an engine replica behind `Model`, timed by the running loop's clock.

Carries messages to an `EngineCore` and wakes it when it asks; decides nothing. On a `VirtualLoop` a
whole run takes no real time; on a real loop it answers in real time. However a request ends, the
sink holds exactly the tokens that the engine had made by then.
"""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol

from agentflow.errors import (
    EngineAdminFailed,
    EngineRejected,
    EngineUnreachable,
)
from agentflow.observe.events import NullEvents
from agentflow.sim.engine_core import EngineCore
from agentflow.sim.engine_messages import (
    Abort,
    Answered,
    Continue,
    End,
    Ended,
    Flush,
    Pause,
    Started,
    Submit,
    Update,
)
from agentflow.sim.flight import Flight
from agentflow.sim.intake import take_in
from agentflow.sim.sequence import EngineUse
from agentflow.types import ModelInfo, SyncMode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

    from agentflow.protocols import EventSink, TokenSink
    from agentflow.sim.engine_messages import Answer, Message
    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.types import GenerationRequest, GenerationResult


class OutputLengths(Protocol):
    """How much the model says."""

    def __call__(self, request: GenerationRequest) -> int | None:
        """Tokens, its end included, after which it stops by itself; None: never."""
        ...


def until_the_budget(request: GenerationRequest) -> int | None:  # noqa: ARG001  # OutputLengths
    """Never stop before the budget is used up."""
    return None


class SimulatedEngine:
    """One replica. Use it on one loop only."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        lengths: OutputLengths = until_the_budget,
        events: EventSink | None = None,
    ) -> None:
        self.spec = spec
        self.use = EngineUse()
        """What it has done, over all its lives."""
        self._lengths = lengths
        self._events = events if events is not None else NullEvents()
        self._core = self._new_core(version=0)
        self._alive = True
        self._requests: dict[str, Flight] = {}
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._tickets = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self._mode: SyncMode | None = None
        """How it is paused; None while it runs."""

    # --- Model --------------------------------------------------------------------------------

    async def info(self) -> ModelInfo:
        """Describe the engine. Raises EngineUnreachable while it is dead."""
        self._check_alive()
        return ModelInfo(
            name=self.spec.name,
            vocab_size=self.spec.vocab_size,
            context_length=self.spec.context_length,
            weight_version=self._core.version,
            kv_tokens=self.spec.kv_tokens,
            priorities=self.spec.priorities,
        )

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Continue `request.input_ids` (see `Model.generate`)."""
        self._check_alive()
        seq = take_in(request, self.spec, said=self._lengths(request))
        if request.rid in self._requests:
            raise EngineRejected(f"duplicate request id {request.rid!r}")
        end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        flight = self._requests[request.rid] = Flight(seq=seq, end=end, sink=sink)
        self._post(Submit(seq=seq))
        try:
            how = await end
        except asyncio.CancelledError:
            if end.cancelled():  # while it ran; otherwise it ended at the same moment
                flight.deliver(self._core.tokens_of(seq, self._now()), version=self._core.version)
                self._post(Abort(rid=request.rid))
            else:
                flight.deliver(seq.out, version=self._core.version)
            raise
        flight.deliver(seq.out, version=self._core.version)
        return flight.result(how)

    async def abort(self, rid: str) -> None:
        """Ask that `rid` ends; harmless when it has ended already."""
        if self._alive:
            self._post(Abort(rid=rid))

    async def close(self) -> None:
        """Let go of the loop. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # --- life and death -----------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether it answers."""
        return self._alive

    @property
    def in_flight(self) -> int:
        """Requests that have not ended."""
        return len(self._core.batcher.live()) if self._alive else 0

    @property
    def version(self) -> int:
        """Weight version that generates now."""
        return self._core.version

    def kill(self) -> None:
        """Die at once; every request ends with EngineDied and the tokens it has."""
        if self._alive:
            self._alive = False
            self._events.emit("engine_died")
            self._tell(self._core.kill(self._now()))
            self._schedule()

    def revive(self, *, version: int | None = None) -> None:
        """Start again with an empty cache, under weights `version` or those it had."""
        if not self._alive:
            kept = self._core.version if version is None else version
            self._core = self._new_core(version=kept)
            self._mode = None
            self._alive = True
            self._events.emit("engine_revived")

    def check(self) -> None:
        """Assert the invariants."""
        self._core.batcher.check()

    # --- weights: the names of the SGLang client -------------------------------------------------

    async def pause(self, mode: SyncMode) -> None:
        """Stop generating. Raises EngineAdminFailed; then it is not paused."""
        if self._mode is not None:
            raise EngineAdminFailed(f"pause({mode}): paused already, in mode {self._mode}")
        self._mode = mode
        try:
            await self._call(lambda ticket: Pause(ticket=ticket, mode=mode))
        except BaseException:
            if self._alive:
                await self.resume()
            self._mode = None
            raise

    async def resume(self) -> None:
        """Go on generating. Harmless when not paused. Raises EngineAdminFailed."""
        await self._call(lambda ticket: Continue(ticket=ticket))
        self._mode = None

    @asynccontextmanager
    async def paused(self, mode: SyncMode) -> AsyncIterator[None]:
        """Pause for the duration of a block, and resume however it ends."""
        await self.pause(mode)
        try:
            yield
        finally:
            await self.resume()

    async def update_weights_from_disk(self, path: str, *, version: int) -> None:
        """Be `version` from then on; waits for running requests unless paused.

        Cached prefixes are flushed, unless paused in place. Raises EngineAdminFailed.
        """
        if not path:
            raise EngineAdminFailed("path is empty; it must name a checkpoint")
        flush = self._mode is not SyncMode.IN_PLACE
        await self._call(lambda ticket: Update(ticket=ticket, version=version, flush=flush))

    async def flush(self) -> None:
        """Drop cached prefixes. Raises EngineAdminFailed while requests use them."""
        await self._call(lambda ticket: Flush(ticket=ticket))

    async def _call(self, make: Callable[[int], Message]) -> None:
        """Send the message that `make` returns for a ticket, and wait until it took effect."""
        if not self._alive:
            raise EngineAdminFailed(f"{self.spec.name}: the engine is dead")
        ticket = next(self._tickets)
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._calls[ticket] = answer
        message = make(ticket)
        self._post(message)
        try:
            refusal = await answer
        finally:
            self._calls.pop(ticket, None)
        if refusal is not None:
            raise EngineAdminFailed(f"{type(message).__name__.lower()}: {refusal}")

    # --- inside -------------------------------------------------------------------------------

    def _new_core(self, *, version: int) -> EngineCore:
        return EngineCore(self.spec, use=self.use, version=version, emit=self._events.emit)

    def _check_alive(self) -> None:
        if not self._alive:
            raise EngineUnreachable(f"{self.spec.name}: the engine is dead")

    def _post(self, message: Message) -> None:
        self._core.post(message, self._now())
        self._schedule()

    def _wake(self) -> None:
        self._timer = None
        self._tell(self._core.wake(self._now()))
        self._schedule()

    def _schedule(self) -> None:
        """Wake the core when it asks."""
        at = self._core.wake_at if self._alive else None
        if self._timer is not None:
            if self._timer.when() == at:
                return
            self._timer.cancel()
            self._timer = None
        if at is not None:
            self._timer = asyncio.get_running_loop().call_at(at, self._wake)

    def _tell(self, answers: Iterable[Answer]) -> None:
        for answer in answers:
            match answer:
                case Started(seq=seq):
                    flight = self._requests[seq.rid]
                    if not flight.end.done():
                        flight.deliver(1, version=self._core.version)
                case Ended(seq=seq, end=end):
                    flight = self._requests.pop(seq.rid)
                    if not flight.end.done():
                        flight.end.set_result(end)
                case Answered(ticket=ticket, refusal=refusal):
                    call = self._calls.get(ticket)
                    if call is not None and not call.done():
                        call.set_result(refusal)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
