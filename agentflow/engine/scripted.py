"""ScriptedEngine: a `Model` that plays a script token by token, for demos, tests and playback.

Owns the requests in flight and their slots, and honours the same rules as a real engine: it checks
ids, length and rid, stops at stop ids, stop strings and budgets, hands tokens out in chunks, and
ends an aborted request where it stands. What it says comes from a `Script`. Lives on one event
loop. Waits only through `asyncio.timeout`, so that virtual time paces it as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from agentflow.engine.flights import Flight, Gate, Slots
from agentflow.engine.seam import StopStrings
from agentflow.errors import (
    ConfigError,
    EngineAdminFailed,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.types import FinishReason, GenerationResult, ModelInfo, SyncMode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.tokenizer import FastTokenizer
    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, SamplingParams

DEFAULT_CONTEXT: Final = 32768
DEFAULT_CHUNK: Final = 16
"""Tokens between two looks at the loop: small enough to be aborted amid a short turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSettings:
    """How a ScriptedEngine behaves, whatever it plays."""

    context_length: int = DEFAULT_CONTEXT
    """Longest prompt + output, in tokens."""
    chunk_tokens: int = DEFAULT_CHUNK
    """Tokens handed out at once."""
    tokens_per_s: float | None = None
    """Pace of each request; None plays as fast as the loop turns."""
    max_concurrency: int | None = None
    """Requests that run at once, the others queue in order; None: no limit."""

    def __post_init__(self) -> None:
        for field in ("context_length", "chunk_tokens", "max_concurrency"):
            value = getattr(self, field)
            if value is not None and value < 1:
                raise ConfigError(f"{field} {value} must be at least 1")
        if self.tokens_per_s is not None and not self.tokens_per_s > 0:
            raise ConfigError(f"tokens_per_s {self.tokens_per_s} must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What a script says next; the three are equally long."""

    ids: Sequence[int]
    logprobs: Sequence[float]
    """Nats."""
    versions: Sequence[int] | None = None
    """Weight version of each id; None: the engine's current one."""


class Script(Protocol):
    """What a ScriptedEngine plays."""

    @property
    def name(self) -> str:
        """For the engine's `info`."""
        ...

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids at which every generation stops, as at a model's own end-of-sequence id."""
        ...

    def continuation(self, request: GenerationRequest) -> Continuation:
        """Return the whole rest of the turn. Raises EngineRejected when there is none."""
        ...


class ScriptedEngine:
    """Plays `script` behind the `Model` protocol."""

    def __init__(
        self,
        script: Script,
        *,
        tokenizer: FastTokenizer,
        settings: ScriptedSettings | None = None,
    ) -> None:
        settings = settings or ScriptedSettings()
        self._script = script
        self._tokenizer = tokenizer
        self._context_length = settings.context_length
        self._chunk_tokens = settings.chunk_tokens
        self._tokens_per_s = settings.tokens_per_s
        self._slots = Slots(settings.max_concurrency)
        self._flights: dict[str, Flight] = {}
        self._gate = Gate()
        self._closed = False
        self.weight_version = 0
        """Version that generated tokens carry from now on; set it as a weight update would."""

    async def info(self) -> ModelInfo:
        """Describe the engine."""
        self._check_open()
        return ModelInfo(
            name=self._script.name,
            vocab_size=self._tokenizer.vocab_size,
            context_length=self._context_length,
            weight_version=self.weight_version,
        )

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Play the rest of the turn; see `protocols.Model`."""
        self._check_open()
        self._check(request)
        flight = Flight()
        self._flights[request.rid] = flight
        try:
            await self._gate.passed(flight)
            await self._slots.acquire(flight)
            try:
                return await self._play(request, sink, flight)
            finally:
                self._slots.release()
        finally:
            self._gate.leave(flight)
            del self._flights[request.rid]

    async def abort(self, rid: str) -> None:
        """End exactly the request `rid`; harmless when there is none."""
        flight = self._flights.get(rid)
        if flight is not None:
            flight.end(GenerationAborted(f"request {rid} was aborted"))

    async def close(self) -> None:
        """End what is in flight. Idempotent."""
        self._closed = True
        for rid, flight in self._flights.items():
            flight.end(EngineDied(f"the engine was closed while request {rid} ran"))

    # --- EngineAdmin --------------------------------------------------------------------------

    async def pause(self, mode: SyncMode) -> None:
        """Hold new requests; those in flight end, are waited for, or stand still.

        Raises EngineAdminFailed when it is paused already.
        """
        if self._gate.mode is not None:
            raise EngineAdminFailed(f"pause({mode}): paused already, in mode {self._gate.mode}")
        self._gate.close(mode)
        if mode is SyncMode.ABORT:
            for flight in self._gate.admitted:
                flight.end(GenerationAborted("every request was aborted for a weight update"))
        try:
            if mode in {SyncMode.ABORT, SyncMode.DRAIN}:
                await self._gate.until_left(self._gate.admitted)
        except BaseException:
            self._gate.open()
            raise

    async def resume(self) -> None:
        """Let everything go on. Harmless when not paused."""
        self._gate.open()

    async def flush(self) -> None:
        """Drop no cache. Raises EngineAdminFailed while paused in place, as SGLang does."""
        if self._gate.mode is SyncMode.IN_PLACE:
            raise EngineAdminFailed("flush: requests are paused in place and need their KV")

    def gauges(self) -> dict[str, float]:
        """Requests that run and that wait for a slot."""
        waiting = self._slots.waiting
        return {"running": float(len(self._flights) - waiting), "waiting": float(waiting)}

    # --- checks -------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed:
            raise EngineUnreachable(f"engine {self._script.name} is closed")

    def _check(self, request: GenerationRequest) -> None:
        if request.rid in self._flights:
            raise EngineRejected(f"rid {request.rid!r} is in flight already; each needs its own")
        ids = request.input_ids
        if not len(ids):
            raise EngineRejected(f"request {request.rid}: input_ids is empty")
        bad = np.flatnonzero((ids < 0) | (ids >= self._tokenizer.vocab_size))
        if len(bad):
            raise EngineRejected(
                f"request {request.rid}: id {int(ids[bad[0]])} at position {int(bad[0])} is "
                f"outside the vocabulary 0..{self._tokenizer.vocab_size - 1}"
            )
        budget = request.sampling.max_new_tokens
        if budget < 1:
            raise EngineRejected(f"request {request.rid}: max_new_tokens {budget} must be above 0")
        if len(ids) + budget > self._context_length:
            raise EngineRejected(
                f"request {request.rid}: {len(ids)} prompt tokens and max_new_tokens {budget} "
                f"exceed the context of {self._context_length}"
            )

    # --- playing ------------------------------------------------------------------------------

    async def _play(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight
    ) -> GenerationResult:
        said = self._script.continuation(request)
        length, result = self._cut(said.ids, request.sampling)
        for start in range(0, length, self._chunk_tokens):
            end = min(start + self._chunk_tokens, length)
            await flight.wait(self._seconds(end - start))
            await self._gate.stood_still(flight)
            self._hand_out(said, start, end, sink)
        return result

    def _seconds(self, tokens: int) -> float:
        return 0.0 if self._tokens_per_s is None else tokens / self._tokens_per_s

    def _hand_out(self, said: Continuation, start: int, end: int, sink: TokenSink) -> None:
        versions = said.versions
        while start < end:
            version = self.weight_version if versions is None else versions[start]
            stop = end
            if versions is not None:
                stop = next((i for i in range(start, end) if versions[i] != version), end)
            sink.append(said.ids[start:stop], said.logprobs[start:stop], version)
            start = stop

    def _cut(self, ids: Sequence[int], sampling: SamplingParams) -> tuple[int, GenerationResult]:
        """How many of `ids` are generated, and how the generation ends."""
        ids = ids[: sampling.max_new_tokens]
        stop_ids = {*sampling.stop_token_ids, *self._script.end_ids}
        at = next((i for i, id_ in enumerate(ids) if id_ in stop_ids), None)
        matched: int | str | None = None
        length = len(ids)
        if at is not None:
            length, matched = at + 1, ids[at]
        found = self._stop_string(ids[:length], sampling.stop)
        if found is not None:
            length, matched = found
        finish = FinishReason.LENGTH if matched is None else FinishReason.STOP
        return length, GenerationResult(finish=finish, matched=matched)

    def _stop_string(self, ids: Sequence[int], stops: Sequence[str]) -> tuple[int, str] | None:
        """Return the tokens up to the first stop string, and that string."""
        stop = StopStrings(stops).met(self._tokenizer.decode(ids)) if stops else None
        if stop is None:
            return None
        low, high = 0, len(ids)
        while low < high:  # the shortest prefix whose text holds it
            middle = (low + high) // 2
            found = stop in self._tokenizer.decode(ids[:middle])
            low, high = (low, middle) if found else (middle + 1, high)
        return low, stop
