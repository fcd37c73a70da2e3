"""Batcher: which requests of an engine wait, which run, and with what KV.

Owns queue, running batch, the request whose prefill was cut, requests held by a pause, and the KV
memory. Knows no time. Invariants (`check`): a request is in one of those places; at most `slots`
run; memory adds up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.sim.admission import PrefillBatch, ReserveRatio, clipped_budget
from agentflow.sim.engine_messages import End
from agentflow.sim.kv_memory import KvMemory

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.sim.sequence import EngineUse, Sequence


class Batcher:
    """The requests of one engine replica."""

    def __init__(
        self,
        spec: EngineSpec,
        use: EngineUse,
        *,
        emit: Callable[..., None],
        on_start: Callable[[Sequence], None],
        on_end: Callable[[Sequence, End], None],
    ) -> None:
        self._spec = spec
        self._use = use
        self._emit = emit
        self._on_start = on_start
        self._on_end = on_end
        self.memory = KvMemory(
            spec.kv_tokens, prefix_cache=spec.prefix_cache, page_size=spec.page_size
        )
        self.running: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.held: list[Sequence] = []
        """Requests that came during a pause; they start to wait when it ends."""
        self._cut: Sequence | None = None
        self._ratio = ReserveRatio(spec)
        self._full = False
        self._orders = 0

    # --- looking ------------------------------------------------------------------------------

    @property
    def computing(self) -> list[Sequence]:
        """Requests that use KV: the running ones and the one whose prefill was cut."""
        return self.running if self._cut is None else [*self.running, self._cut]

    @property
    def busy(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.running or self.waiting or self._cut is not None)

    def live(self) -> list[Sequence]:
        """Every request that is here."""
        return [*self.computing, *self.waiting, *self.held]

    def check(self) -> None:
        """Assert the invariants."""
        self.memory.check()
        everyone = self.live()
        assert len({id(seq) for seq in everyone}) == len(everyone)
        assert len(self.computing) <= self._spec.slots

    # --- coming and going ---------------------------------------------------------------------

    def arrive(self, seq: Sequence, *, held: bool) -> None:
        """Take a new request in."""
        seq.order = self._next_order()
        (self.held if held else self.waiting).append(seq)

    def release_held(self) -> None:
        """Let the requests that a pause held start to wait."""
        self.waiting += self.held
        self.held.clear()

    def abort(self, prefix: str) -> None:
        """Abort every request whose rid starts with `prefix`: at once, or after its next pass."""
        for queue in (self.waiting, self.held):
            for seq in [s for s in queue if s.rid.startswith(prefix)]:
                queue.remove(seq)
                self._on_end(seq, End.ABORTED)
        for seq in self.computing:
            seq.aborted |= seq.rid.startswith(prefix)

    def retract_all(self) -> None:
        """Send everything back to the queue and drop its own KV."""
        for seq in self.computing:
            self._send_back(seq)
        self.running, self._cut = [], None

    def _send_back(self, seq: Sequence) -> None:
        """Put a running request at the end of the queue; its prompt stays cached, for a while."""
        self.memory.detach(seq)
        if seq.aborted:
            self._on_end(seq, End.ABORTED)
            return
        seq.order = self._next_order()
        self.waiting.append(seq)

    def _next_order(self) -> int:
        self._orders += 1
        return self._orders

    # --- what runs next -----------------------------------------------------------------------

    def prefill_batch(self) -> PrefillBatch:
        """Admit what may start now; the batch is empty when nothing may."""
        spec = self._spec
        batch = PrefillBatch(spec=spec, memory=self.memory, reserved=self._reserved())
        if self._cut is not None:
            batch.go_on(self._cut)
            self._cut = None
        if spec.preemption or not self.running:
            self._full = False
        if spec.priorities:
            self.waiting.sort(key=lambda seq: (-seq.priority, seq.order))
        while self.waiting and not self._full and self._admit(self.waiting[0], batch):
            pass
        self._full |= batch.full
        self._cut = batch.cut
        return batch

    def _reserved(self) -> float:
        """Tokens that admission keeps free for what runs; nobody asks where memory is unlimited."""
        if self._spec.kv_tokens is None or not (self.waiting or self._cut):
            return 0.0
        clip = self._spec.reserve_clip
        return self._ratio.value * sum(clipped_budget(seq, clip) for seq in self.running)

    def _admit(self, seq: Sequence, batch: PrefillBatch) -> bool:
        free = self._spec.slots - len(self.running) - len(batch.parts)
        if free <= 0 and not self._preempt_for(seq, batch):
            return False
        if not batch.add(seq):
            return False
        self.waiting.remove(seq)
        self._emit("engine_admitted", rid=seq.rid, cached=seq.held)
        return True

    def _preempt_for(self, seq: Sequence, batch: PrefillBatch) -> bool:
        """Throw the least important running request out for `seq`, if it is less so by enough."""
        if not (self._spec.preemption and self.running):
            return False
        victim = min(self.running, key=lambda s: (s.priority, -s.order))
        if seq.priority - victim.priority <= self._spec.preemption_threshold:
            return False
        self.running.remove(victim)
        batch.reserved -= clipped_budget(victim, self._spec.reserve_clip) * self._ratio.value
        self._use.preemptions += 1
        self._emit("engine_preempted", rid=victim.rid, by=seq.rid, tokens=victim.out)
        self._send_back(victim)
        return True

    def make_room(self) -> None:
        """Retract until every running request can have one more token."""
        if self.memory.available >= len(self.running):
            return
        while len(self.running) > 1 and self.memory.available < len(self.running):
            self._retract_one()
        self._full = False
        self._ratio.after_retraction(self.running)

    def _retract_one(self) -> None:
        victim = min(self.running, key=lambda s: (s.out, -s.prompt_len, -s.order))
        self.running.remove(victim)
        victim.retractions += 1
        self._use.retractions += 1
        self._emit("engine_retracted", rid=victim.rid, tokens=victim.out)
        self._send_back(victim)

    def when_idle(self) -> None:
        """Take note that nothing runs."""
        self._ratio.when_idle()

    # --- what a pass did ----------------------------------------------------------------------

    def prefilled(self, batch: PrefillBatch, version: int) -> None:
        """Take note that `batch` was computed: completed contexts got their first token."""
        for part in batch.parts:
            self.memory.publish(part.seq, part.prefix + part.new)
            if part.last:
                if not part.seq.out:
                    self._on_start(part.seq)
                part.seq.count(1, version)
                self._use.generated_tokens += 1
                self.running.append(part.seq)
        self._end_finished()

    def decoded(self, steps: int, version: int) -> None:
        """Take note that every running request got `steps` more tokens."""
        self.memory.take(steps * len(self.running))
        for seq in self.running:
            if seq.spans[-1][1] != version:
                seq.spans.append((seq.out, version))
            seq.out += steps
            seq.context += steps
            seq.own += steps
            seq.left -= steps
        self._use.generated_tokens += steps * len(self.running)
        self._ratio.after_steps(steps)
        self._end_finished()

    def _end_finished(self) -> None:
        self._use.evicted_tokens = self.memory.evicted
        finished = [seq for seq in self.running if seq.aborted or seq.left <= 0]
        if not finished:
            return
        self.running = [seq for seq in self.running if not (seq.aborted or seq.left <= 0)]
        self._full = False
        for seq in finished:
            self.memory.publish(seq, seq.context - 1)
            self.memory.detach(seq)
            self._on_end(seq, End.ABORTED if seq.aborted else End.DONE)
