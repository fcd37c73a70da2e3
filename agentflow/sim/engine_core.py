"""EngineCore: continuous batching on a clock that it is told; messages in, answers out.

Owns what the engine is doing (nothing, one prefill batch, a run of decode steps, a weight update),
pauses and updates. Never looks at a clock. Between two messages it jumps to the next end of a
request in closed form. As in SGLang, messages are read between two forward passes; a prefill goes
before decoding and stalls it; its end brings the first token; an aborted request makes one more
pass before it ends and leaves its KV in the cache.
"""

from __future__ import annotations

from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, TypeAlias, assert_never

from agentflow.sim.admission import PrefillBatch
from agentflow.sim.batcher import Batcher
from agentflow.sim.decode_run import DecodeRun
from agentflow.sim.engine_messages import (
    Abort,
    AbortAll,
    Answer,
    Answered,
    Continue,
    End,
    Ended,
    Flush,
    Message,
    Pause,
    Started,
    Submit,
    Update,
)
from agentflow.sim.engine_spec import attention_reads
from agentflow.sim.sequence import EngineUse
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.sim.sequence import Sequence

Activity: TypeAlias = PrefillBatch | DecodeRun | Update

_ABORTED, _LEFT, _CONTEXT = (attrgetter(name) for name in ("aborted", "left", "context"))
"""Of every running request, for every run of steps: without a Python frame for each."""


class EngineCore:
    """One life of an engine replica. Times are seconds and must not run backwards."""

    def __init__(
        self,
        spec: EngineSpec,
        *,
        use: EngineUse | None = None,
        version: int = 0,
        emit: Callable[..., None] | None = None,
    ) -> None:
        """`emit(kind, rid=..., **facts)` is told what happens, at the time it happens."""
        self.spec = spec
        self.version = version
        self.use = use if use is not None else EngineUse()
        self._emit = emit if emit is not None else _say_nothing
        self.batcher = Batcher(
            spec, self.use, emit=self._emit, on_start=self._start, on_end=self._end
        )
        self._inbox: deque[Message] = deque()
        self._activity: Activity | None = None
        self._wake_at: float | None = None
        self._pause: SyncMode | None = None
        self._pausing: Pause | None = None
        self._updates: deque[Update] = deque()
        self._answers: list[Answer] = []

    # --- outside ------------------------------------------------------------------------------

    @property
    def wake_at(self) -> float | None:
        """When `wake` must be called next; None: not before another message."""
        return self._wake_at

    @property
    def paused(self) -> bool:
        """Whether generation stands still."""
        return self._pause is not None

    def post(self, message: Message, now: float) -> None:
        """Hand a message in; it is read when the forward pass that is under way has ended."""
        self._inbox.append(message)
        if isinstance(self._activity, DecodeRun):
            self._activity.cut(now)
            self._wake_at = self._activity.end
        elif self._activity is None:
            self._wake_at = now

    def wake(self, now: float) -> list[Answer]:
        """End what ends now, read messages, begin what comes next; return what is to be told."""
        if self._wake_at is None or now < self._wake_at:
            return []
        self._finish_activity()
        while self._inbox:
            self._read(self._inbox.popleft())
        self._settle_pause()
        self._begin_next(now)
        answers, self._answers = self._answers, []
        return answers

    def tokens_of(self, seq: Sequence, now: float) -> int:
        """Tokens that `seq` has got by `now`, in the middle of a run of steps too."""
        run = self._activity
        if isinstance(run, DecodeRun) and seq in self.batcher.running:
            return seq.out + run.done_at(now)
        return seq.out

    def kill(self, now: float) -> list[Answer]:
        """Die: every request ends with the tokens it has by `now`, every call is refused."""
        run = self._activity
        if isinstance(run, DecodeRun):
            run.steps = run.done_at(now)
            self._decode(run)
        self._activity, self._wake_at = None, None
        for seq in [*self.batcher.live(), *_prefilling(run), *_submitted(self._inbox)]:
            self._end(seq, End.DIED)
        for asked in (run, self._pausing, *self._updates, *self._inbox):
            if isinstance(asked, Pause | Continue | Update | Flush):
                self._answers.append(Answered(ticket=asked.ticket, refusal="the engine died"))
        return self._answers

    # --- messages -----------------------------------------------------------------------------

    def _read(self, message: Message) -> None:
        match message:
            case Submit(seq=seq):
                self._emit("engine_arrived", rid=seq.rid, tokens=seq.context)
                held = self.paused or self._pausing is not None or bool(self._updates)
                self.batcher.arrive(seq, held=held)
            case Abort(rid=rid):
                if any(seq.rid == rid for seq in self.batcher.live()):
                    self.batcher.abort(rid)
            case AbortAll():
                self.batcher.abort("")
            case Pause():
                self._begin_pause(message)
            case Continue(ticket=ticket):
                self._resume(ticket)
            case Update():
                self._updates.append(message)
            case Flush(ticket=ticket):
                self._answers.append(Answered(ticket=ticket, refusal=self._flush()))
            case other:
                assert_never(other)

    def _begin_pause(self, message: Pause) -> None:
        match message.mode:
            case SyncMode.ABORT:
                self.batcher.abort("")
            case SyncMode.RETRACT:
                self.batcher.retract_all()
            case SyncMode.IN_PLACE | SyncMode.DRAIN:
                pass
            case other:
                assert_never(other)
        self._pausing = message

    def _settle_pause(self) -> None:
        """Let a pause take effect, once what it waits for has ended."""
        pausing = self._pausing
        if pausing is None or (
            pausing.mode in {SyncMode.ABORT, SyncMode.DRAIN} and self.batcher.busy
        ):
            return
        self._pause, self._pausing = pausing.mode, None
        self._emit("engine_paused", mode=pausing.mode)
        self._answers.append(Answered(ticket=pausing.ticket))

    def _resume(self, ticket: int) -> None:
        if self._pausing is not None:
            self._answers.append(Answered(ticket=self._pausing.ticket, refusal="resumed before"))
        self._pause, self._pausing = None, None
        if not self._updates:
            self.batcher.release_held()
        self._emit("engine_resumed")
        self._answers.append(Answered(ticket=ticket))

    def _flush(self) -> str | None:
        """Flush, or say why not."""
        users = len(self.batcher.computing)
        if users:
            return f"{users} requests use the cache"
        self.batcher.memory.flush()
        return None

    # --- what comes next ----------------------------------------------------------------------

    def _begin_next(self, now: float) -> None:
        self._activity, self._wake_at = None, None
        if self._begin_update(now) or self.paused:
            return
        batch = self.batcher.prefill_batch()
        if batch.parts:
            self._activity, self._wake_at = batch, now + batch.duration
            return
        self.batcher.make_room()
        if self.batcher.running:
            run = self._decode_run(now)
            self._activity, self._wake_at = run, run.end
        else:
            self.batcher.when_idle()

    def _begin_update(self, now: float) -> bool:
        """Begin the next weight update, if there is one and it need not wait."""
        while self._updates and (self.paused or not self.batcher.busy):
            update = self._updates.popleft()
            refusal = self._flush() if update.flush else None
            if refusal is None:
                self._activity, self._wake_at = update, now + self.spec.update_s
                return True
            self._answers.append(Answered(ticket=update.ticket, refusal=refusal))
            self._after_update()
        return False

    def _after_update(self) -> None:
        if not (self.paused or self._updates or self._pausing is not None):
            self.batcher.release_held()

    def _decode_run(self, now: float) -> DecodeRun:
        running = self.batcher.running
        steps = 1 if any(map(_ABORTED, running)) else min(map(_LEFT, running))
        return DecodeRun(
            start=now,
            batch=len(running),
            context=sum(map(_CONTEXT, running)),
            steps=max(1, min(steps, self.batcher.memory.available // len(running))),
            timings=self.spec.timings,
        )

    # --- what has ended -----------------------------------------------------------------------

    def _finish_activity(self) -> None:
        match self._activity:
            case PrefillBatch() as batch:
                self._prefill(batch)
            case DecodeRun() as run:
                self._decode(run)
            case Update() as update:
                self.version = update.version
                self.use.update_s += self.spec.update_s
                self._emit("engine_updated", version=update.version)
                self._answers.append(Answered(ticket=update.ticket))
                self._after_update()
            case None:
                pass
            case other:
                assert_never(other)
        self._activity = None

    def _prefill(self, batch: PrefillBatch) -> None:
        use = self.use
        use.prefill_batches += 1
        use.prefill_tokens += sum(part.new for part in batch.parts)
        use.prefill_reads += sum(attention_reads(p.new, p.prefix) for p in batch.parts)
        use.busy_s += batch.duration
        self.batcher.prefilled(batch, self.version)

    def _decode(self, run: DecodeRun) -> None:
        use = self.use
        use.steps += run.steps
        use.decoded_tokens += run.steps * run.batch
        use.decode_reads += run.reads(run.steps)
        use.busy_s += run.duration(run.steps)
        self.batcher.decoded(run.steps, self.version)

    def _start(self, seq: Sequence) -> None:
        self._answers.append(Started(seq=seq))

    def _end(self, seq: Sequence, end: End) -> None:
        self.use.cached_tokens += seq.cached_tokens
        self.use.aborts += end is End.ABORTED
        self._emit("engine_ended", rid=seq.rid, end=end, tokens=seq.out)
        self._answers.append(Ended(seq=seq, end=end))


def _prefilling(activity: Activity | None) -> list[Sequence]:
    """Requests that are in a prefill batch and nowhere else."""
    parts = activity.parts if isinstance(activity, PrefillBatch) else []
    return [part.seq for part in parts if part.last]


def _submitted(inbox: deque[Message]) -> list[Sequence]:
    return [message.seq for message in inbox if isinstance(message, Submit)]


def _say_nothing(_kind: str, **_facts: object) -> None:
    """For engines that nobody listens to."""
