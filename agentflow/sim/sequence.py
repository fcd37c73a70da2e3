"""Sequence: one request inside a simulated engine; and what an engine has done."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentflow.sim.radix import RadixNode
    from agentflow.types import GenerationRequest


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One request, from its arrival to its end. Lengths are in tokens."""

    request: GenerationRequest
    budget: int
    """Most tokens it may generate here."""
    output: NDArray[np.int32]
    """Every id it will generate, of which `out` are there; at most `budget`."""
    matched: int | None = None
    """The stop id that it ends with; None: it ends with the budget."""
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
    context: int = field(init=False)
    """Tokens so far."""
    left: int = field(init=False)
    """Tokens until it ends by itself."""

    def __post_init__(self) -> None:
        self.prompt_len = self.context = len(self.request.input_ids)
        self.left = len(self.output)

    @property
    def rid(self) -> str:
        """The request's id."""
        return self.request.rid

    @property
    def priority(self) -> int:
        """Higher goes first."""
        return self.request.priority or 0

    def ids(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return tokens `start..stop` of prompt and output."""
        prompt = self.request.input_ids
        if stop <= self.prompt_len:
            return prompt[start:stop]
        made = self.made(max(start - self.prompt_len, 0), stop - self.prompt_len)
        return made if start >= self.prompt_len else np.concatenate((prompt[start:], made))

    def made(self, start: int, stop: int) -> NDArray[np.int32]:
        """Return generated ids `start..stop`."""
        return self.output[start:stop]

    def count(self, tokens: int, version: int) -> None:
        """Take note of `tokens` more, generated under `version`."""
        if not self.spans or self.spans[-1][1] != version:
            self.spans.append((self.out, version))
        self.out += tokens
        self.context += tokens
        self.left -= tokens


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
