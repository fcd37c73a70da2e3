"""SimulatedEngine: an engine replica behind `Model`, timed by the running loop's clock.

Carries messages to an `EngineCore` and wakes it when it asks; decides nothing. On a `VirtualLoop` a
whole run takes no real time; on a real loop it answers in real time. However a request ends, the
sink holds exactly the tokens that the engine had made by then.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agentflow.errors import (
    ContextFull,
    EngineAdminFailed,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.observe.events import NullEvents
from agentflow.sim.engine_core import EngineCore
from agentflow.sim.engine_messages import (
    Abort,
    Answered,
    End,
    Ended,
    Started,
    Submit,
)
from agentflow.sim.sequence import EngineUse, Sequence
from agentflow.sim.speech import logprobs_of, speak
from agentflow.sim.weights import SimulatedWeights
from agentflow.types import FinishReason, GenerationResult, ModelInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentflow.protocols import EventSink, TokenSink
    from agentflow.sim.engine_messages import Answer, Message
    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.types import GenerationRequest


class OutputLengths(Protocol):
    """How much the model says."""

    def __call__(self, request: GenerationRequest) -> int | None:
        """Tokens, its end included, after which it stops by itself; None: never."""
        ...


def until_the_budget(request: GenerationRequest) -> int | None:  # noqa: ARG001  # OutputLengths
    """Never stop before the budget is used up."""
    return None


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A request and who waits for it."""

    seq: Sequence
    end: asyncio.Future[End]
    sink: TokenSink
    delivered: int = 0


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
        self._requests: dict[str, _Flight] = {}
        self._calls: dict[int, asyncio.Future[str | None]] = {}
        self._tickets = itertools.count(1)
        self._timer: asyncio.TimerHandle | None = None
        self.weights = SimulatedWeights(self)

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
        )

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Continue `request.input_ids` (see `Model.generate`)."""
        self._check_alive()
        seq = self._sequence(request)
        if request.rid in self._requests:
            raise EngineRejected(f"duplicate request id {request.rid!r}")
        end: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        flight = self._requests[request.rid] = _Flight(seq=seq, end=end, sink=sink)
        self._post(Submit(seq=seq))
        try:
            how = await end
        except asyncio.CancelledError:
            if end.cancelled():  # while it ran; otherwise it ended at the same moment
                self._deliver(flight, self._core.tokens_of(seq, self._now()))
                self._post(Abort(rid=request.rid))
            else:
                self._deliver(flight, seq.out)
            raise
        self._deliver(flight, seq.out)
        return _result(seq, how)

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
            self.weights.mode = None
            self._alive = True
            self._events.emit("engine_revived")

    def check(self) -> None:
        """Assert the invariants."""
        self._core.batcher.check()

    # --- admin --------------------------------------------------------------------------------

    async def call(self, make: Callable[[int], Message]) -> None:
        """Send the message that `make` returns for a ticket, and wait until it took effect.

        Raises EngineAdminFailed when it was refused or the engine is dead.
        """
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

    def _sequence(self, request: GenerationRequest) -> Sequence:
        """Check a request as the server would, and decide how long it will be."""
        spec, length = self.spec, len(request.input_ids)
        if not length:
            raise EngineRejected("input_ids is empty; at least one token is needed")
        low, high = int(np.min(request.input_ids)), int(np.max(request.input_ids))
        if low < 0 or high >= spec.vocab_size:
            wrong = low if low < 0 else high
            raise EngineRejected(f"id {wrong} is outside the vocabulary of {spec.vocab_size}")
        self._check_context(length, request.sampling.max_new_tokens)
        budget = request.sampling.max_new_tokens
        if spec.kv_tokens is not None:
            budget = min(budget, spec.kv_tokens - 2 - length)
        if budget < 1:
            raise EngineRejected(
                f"{length} tokens and max_new_tokens {request.sampling.max_new_tokens} do not fit: "
                f"KV memory has {spec.kv_tokens} tokens, and one must be generated"
            )
        said = self._lengths(request)
        output, matched = speak(request, said=said, budget=budget, vocab_size=spec.vocab_size)
        return Sequence(request=request, budget=budget, output=output, matched=matched)

    def _check_context(self, prompt: int, new: int) -> None:
        most = self.spec.context_length
        if prompt >= most:
            raise ContextFull(f"{prompt} tokens fill the context of {most}")
        if prompt + new > most:
            raise EngineRejected(
                f"{prompt} tokens and max_new_tokens {new} are above the context of {most}"
            )

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
                        self._deliver(flight, 1)
                case Ended(seq=seq, end=end):
                    flight = self._requests.pop(seq.rid)
                    if not flight.end.done():
                        flight.end.set_result(end)
                case Answered(ticket=ticket, refusal=refusal):
                    call = self._calls.get(ticket)
                    if call is not None and not call.done():
                        call.set_result(refusal)

    def _deliver(self, flight: _Flight, made: int) -> None:
        """Hand over what the sink lacks of the first `made` tokens, by the version that made it."""
        seq, given = flight.seq, flight.delivered
        if made <= given:
            return
        spans = list(seq.spans)
        if made > seq.out and (not spans or spans[-1][1] != self._core.version):
            spans.append((seq.out, self._core.version))  # made by the run that is under way
        ends = [start for start, _ in spans[1:]] + [made]
        for (start, version), end in zip(spans, ends, strict=True):
            if end > given:
                ids = seq.made(max(start, given), end)
                flight.sink.append(ids.tolist(), logprobs_of(ids).tolist(), version)
        flight.delivered = made

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _result(seq: Sequence, how: End) -> GenerationResult:
    if how is End.ABORTED:
        raise GenerationAborted(f"{seq.rid} was aborted after {seq.out} tokens")
    if how is End.DIED:
        raise EngineDied(f"the engine died after {seq.out} tokens of {seq.rid}")
    return GenerationResult(
        finish=FinishReason.LENGTH if seq.matched is None else FinishReason.STOP,
        matched=seq.matched,
        cached_tokens=seq.cached_tokens,
        retractions=seq.retractions,
    )
