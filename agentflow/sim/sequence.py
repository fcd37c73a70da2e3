"""A request inside a simulated engine, the ids it makes, and the time of a run of decode steps."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from agentflow.types import FinishReason

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentflow.sim.engine_spec import EngineTimings
    from agentflow.sim.radix import RadixNode
    from agentflow.types import GenerationRequest

_STRIDE = 7919
"""Distance of neighbouring generated ids; prime, so that a turn does not repeat itself."""
_TIE_S = 1e-12
"""Two moments closer than this are one: far below a step, far above rounding of a day."""


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One request, from its arrival to its end. Lengths are in tokens."""

    request: GenerationRequest
    budget: int
    """Most tokens it may generate here."""
    target: int
    """Tokens after which it ends by itself, ≤ budget."""
    finish: FinishReason
    vocab_size: int
    order: int = 0
    """Place in the queue; a retracted request gets a new one."""
    out: int = 0
    """Tokens generated."""
    spans: list[tuple[int, int]] = field(default_factory=list)
    """(first token, weight version) of every run of tokens of one version."""
    node: RadixNode | None = None
    """Where its locked prefix ends in the cache."""
    held: int = 0
    """Tokens of its context that the locked prefix covers."""
    own: int = 0
    """Tokens of its KV that are not in the cache."""
    aborted: bool = False
    """It ends after its next forward pass."""
    cached_tokens: int = 0
    retractions: int = 0
    prompt_len: int = field(init=False)
    """Tokens that came with the request."""
    _made: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        self.prompt_len = len(self.request.input_ids)

    @property
    def rid(self) -> str:
        """The request's id."""
        return self.request.rid

    @property
    def context(self) -> int:
        """Tokens so far."""
        return self.prompt_len + self.out

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.request.priority or 0

    @property
    def left(self) -> int:
        """Tokens until it ends by itself."""
        return self.target - self.out

    def ids(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return tokens `start..stop` of prompt and output."""
        prompt = self.request.input_ids
        if stop <= self.prompt_len:
            return prompt[start:stop]
        made = self.made(max(start - self.prompt_len, 0), stop - self.prompt_len)
        return made if start >= self.prompt_len else np.concatenate((prompt[start:], made))

    def made(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return generated ids `start..stop`, a pure function of the rid and the position."""
        if self._made is None:
            self._made = self._make_all()
        return self._made[start:stop]

    def _make_all(self) -> NDArray[np.int32]:
        base = zlib.crc32(self.rid.encode())
        numbers = np.arange(self.target, dtype=np.int64) * _STRIDE + base
        ids = (numbers % self.vocab_size).astype(np.int32)
        stops = self.request.sampling.stop_token_ids
        for stop in stops:
            ids[ids == stop] = _plain_id(stops, self.vocab_size)
        if stops and self.finish is FinishReason.STOP:
            ids[-1] = stops[0]
        return ids

    def count(self, tokens: int, version: int) -> None:
        """Take note of `tokens` more, generated under `version`."""
        if not self.spans or self.spans[-1][1] != version:
            self.spans.append((self.out, version))
        self.out += tokens


def _plain_id(stops: tuple[int, ...], vocab_size: int) -> int:
    """Return an id that ends nothing."""
    return next((i for i in range(vocab_size) if i not in stops), 0)


@dataclass(slots=True, kw_only=True)
class DecodeRun:
    """A run of decode steps of one batch, whose steps grow by `c·B` as contexts grow."""

    start: float
    """When the first step began, in seconds."""
    batch: int
    context: int
    """Tokens that the first step reads."""
    steps: int
    """How many steps will be made, unless the run is cut."""
    timings: EngineTimings

    def duration(self, steps: int) -> float:
        """Seconds of the first `steps` steps, in closed form."""
        first = self.timings.decode_s(self.batch, self.context)
        growth = self.timings.c * self.batch
        return steps * first + growth * steps * (steps - 1) / 2

    def reads(self, steps: int) -> int:
        """Tokens that the first `steps` steps read."""
        return steps * self.context + self.batch * steps * (steps - 1) // 2

    @property
    def end(self) -> float:
        """When the last step ends."""
        return self.start + self.duration(self.steps)

    def done_at(self, now: float) -> int:
        """How many steps have ended by `now`."""
        elapsed = now - self.start + _TIE_S
        steps = min(self._guess(elapsed), self.steps)
        while steps < self.steps and self.duration(steps + 1) <= elapsed:
            steps += 1
        while steps and self.duration(steps) > elapsed:
            steps -= 1
        return steps

    def cut(self, now: float) -> None:
        """End the run with the step that is under way at `now`."""
        done = self.done_at(now)
        reached = done and self.duration(done) >= now - self.start - _TIE_S
        self.steps = min(self.steps, done if reached else done + 1)

    def _guess(self, elapsed: float) -> int:
        """Solve `duration(steps) = elapsed` over the reals; rounding is repaired by the caller."""
        if elapsed <= 0:
            return 0
        half = self.timings.c * self.batch / 2
        linear = self.timings.decode_s(self.batch, self.context) - half
        return int(2 * elapsed / (linear + math.sqrt(linear * linear + 4 * half * elapsed)))


@dataclass(slots=True, kw_only=True)
class EngineUse:
    """What an engine has done since it was made; the waterfall is computed from this."""

    steps: int = 0
    decoded_tokens: int = 0
    """Tokens made by decode steps; each prefill makes one more."""
    decode_reads: int = 0
    """Context tokens read by decode steps."""
    prefill_batches: int = 0
    prefill_tokens: int = 0
    prefill_reads: float = 0.0
    """Sum of n·(h + n/2)."""
    generated_tokens: int = 0
    cached_tokens: int = 0
    evicted_tokens: int = 0
    retractions: int = 0
    preemptions: int = 0
    aborts: int = 0
    busy_s: float = 0.0
    """Seconds of steps and prefill batches."""
    update_s: float = 0.0
    """Seconds of weight updates."""
