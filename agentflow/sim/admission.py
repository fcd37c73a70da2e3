"""Admission: which waiting requests go into the next prefill batch, as SGLang decides it.

First come first served, or by priority; a request is admitted if its new tokens and its clipped
budget fit beside a share of what the running ones may still need. The share falls with every
decode step and is raised by a retraction. A batch holds at most `prefill_chunk` new tokens; the
request that does not fit whole is cut there and goes on, before all others, in the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.sim.kv_memory import KvMemory
    from agentflow.sim.sequence import Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPart:
    """What one request contributes to a prefill batch."""

    seq: Sequence
    new: int
    """Tokens computed."""
    prefix: int
    """Tokens before them, whose KV is there."""
    last: bool
    """Whether the context is complete after it, so that a token comes out."""


class ReserveRatio:
    """The share of running requests' budgets that admission keeps free."""

    def __init__(self, spec: EngineSpec) -> None:
        self._spec = spec
        self.value = spec.reserve_ratio

    def after_steps(self, steps: int) -> None:
        """Fall towards the floor."""
        spec = self._spec
        step = (spec.reserve_ratio - spec.reserve_floor) / spec.reserve_decay_steps
        self.value = max(spec.reserve_floor, self.value - step * steps)

    def after_retraction(self, running: Iterable[Sequence]) -> None:
        """Rise to what the remaining requests have needed so far, and a little."""
        made = allowed = count = 0
        for seq in running:
            made, allowed, count = made + seq.out, allowed + seq.budget, count + 1
        headroom = self._spec.retract_headroom * count
        self.value = min(1.0, (made + headroom) / (allowed + 1))

    def when_idle(self) -> None:
        """Start over."""
        self.value = self._spec.reserve_ratio


def clipped_budget(seq: Sequence, clip: int) -> int:
    """Tokens that admission expects a request to need at most."""
    return min(max(seq.budget - seq.out, 0), clip)


@dataclass(slots=True, kw_only=True)
class PrefillBatch:
    """A batch in the making; `add` until it says no."""

    spec: EngineSpec
    memory: KvMemory
    reserved: float
    """Tokens kept free for what runs and for what this batch has admitted."""
    parts: list[PrefillPart] = field(default_factory=list)
    full: bool = False
    """Whether memory refused somebody: nobody is asked again until a request leaves."""
    _room: int = -1

    def __post_init__(self) -> None:
        self._room = self.spec.prefill_chunk

    def go_on(self, seq: Sequence) -> None:
        """Take the next part of a request that was cut."""
        self._take(seq)

    def add(self, seq: Sequence) -> bool:
        """Admit `seq`, or return False: it does not fit, and nothing behind it is tried."""
        if self._room <= 0:
            return False
        self.memory.attach(seq)
        new = seq.context - seq.held
        needed = new + clipped_budget(seq, self.spec.reserve_clip) + 1
        if needed >= self.memory.available - self.reserved:
            self.memory.detach(seq)
            self.full = True
            return False
        seq.cached_tokens += seq.held
        self._take(seq)
        return True

    def _take(self, seq: Sequence) -> None:
        prefix = seq.held + seq.own
        missing = seq.context - prefix
        new = min(missing, self._room)
        last = new == missing
        self.parts.append(PrefillPart(seq=seq, new=new, prefix=prefix, last=last))
        self._room -= new
        self.memory.grow(seq, new)
        if last:
            self.reserved += clipped_budget(seq, self.spec.reserve_clip)

    @property
    def cut(self) -> Sequence | None:
        """The request that goes on in the next batch."""
        return self.parts[-1].seq if self.parts and not self.parts[-1].last else None

    @property
    def duration(self) -> float:
        """Seconds that it takes."""
        timings = self.spec.timings
        return timings.pa + sum(timings.part_s(part.new, part.prefix) for part in self.parts)
