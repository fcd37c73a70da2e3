"""DataCoordinator: every sample between the trainer that issues it and the trainer that takes it.

    add ▶ queue ▶ get_sample ▶ worker ▶ put_data ▶ groups ▶ take_groups
                      ▲ partial first    │ put_partial
                      └──────────────────┘

Owns the samples, the ledger of where they are, and what is known of those in flight. Callable from
any thread: a call that changes something holds one lock and never waits in it; only `get_sample`
and `next_group` wait, on the caller's own loop. A sample is leased in the same step in which
`get_sample` returns it, so that no cancellation can lose one.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from dataclasses import replace
from typing import TYPE_CHECKING

from agentflow.errors import AgentflowError
from agentflow.observe.events import NullEvents
from agentflow.types import Cause, EpisodeId, RolloutSample
from executors.groups import Groups
from executors.inflight import InflightRegistry
from executors.ledger import LedgerCounts, SampleLedger, SampleState
from executors.sample_rows import ended_facts
from executors.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentflow.protocols import EventSink, Runner
    from priority.snapshot import PrioritySnapshot

LOCAL = "local"
"""The worker of a process that has only one."""

logger = logging.getLogger(__name__)


class WorkerGivenUp(AgentflowError):
    """A worker that had been given up asked for a sample; it must come back under a new name."""


class DataCoordinator:
    """Hands samples out and takes them back; see `executors.source` for one worker's view."""

    def __init__(
        self,
        *,
        runner: Runner,
        on_ended: Callable[[RolloutSample], None] | None = None,
        events: EventSink | None = None,
        predictor_url: str | None = None,
        lease_s: float | None = None,
        max_attempts: int = 32,
    ) -> None:
        """`on_ended` sees every sample once, on the thread of the worker that returned it.

        A worker that is silent for `lease_s` seconds is given up by `expire`. An episode that was
        begun `max_attempts` times is dropped instead of being queued again.
        """
        self._runner = runner
        self._on_ended = on_ended
        self._events = events if events is not None else NullEvents()
        self._predictor_url = predictor_url
        self._lease_s = lease_s
        self._max_attempts = max_attempts
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._changed = Wakeups()
        self._ledger = SampleLedger()
        self._inflight = InflightRegistry()
        self._groups = Groups()
        self._samples: dict[EpisodeId, RolloutSample] = {}
        self._queue: OrderedDict[EpisodeId, None] = OrderedDict()
        self._partial: dict[str | None, OrderedDict[EpisodeId, None]] = {None: OrderedDict()}
        self._heard: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._more_may_come = True

    # --- the trainer's side -------------------------------------------------------------------

    def add(self, samples: Iterable[RolloutSample]) -> None:
        """Issue samples; those of one uid are a group. Raises ValueError for a second of one name.

        All members of a group come in one call.
        """
        samples = list(samples)
        with self._lock:
            for sample in samples:
                self._ledger.issue(sample.episode)
                self._samples[sample.episode] = sample
                self._queue[sample.episode] = None
                self._events.emit("issued", sample.episode)
            for uid, left in self._groups.add(samples):
                self._inflight.group(uid, left)
        self._changed.tell()

    def add_prompt(self, sample: RolloutSample, *, n: int) -> None:
        """Issue a prompt `n` times, as replicas 0 to n - 1 of one group."""
        uid = sample.episode.uid
        self.add(
            replace(
                sample, episode=EpisodeId(uid=uid, replica_index=i), metadata={**sample.metadata}
            )
            for i in range(n)
        )

    def finish(self) -> None:
        """Say that no sample will be added; `get_sample` gives None once all have ended."""
        with self._lock:
            self._more_may_come = False
        self._changed.tell()

    def take_groups(self) -> list[tuple[RolloutSample, ...]]:
        """Take every group that is complete, in the order of completion: it is delivered now.

        A group lacks the members that were dropped.
        """
        with self._lock:
            groups = self._groups.take()
            for sample in (sample for group in groups for sample in group):
                self._ledger.deliver(sample.episode)
                del self._samples[sample.episode]
        return groups

    async def next_group(self) -> tuple[RolloutSample, ...] | None:
        """Wait for complete groups and take the first; None when there will never be another."""
        while True:
            waiter = self._changed.waiter()
            with self._lock:
                group = self._groups.take_one()
                for sample in group or ():
                    self._ledger.deliver(sample.episode)
                    del self._samples[sample.episode]
                if group is not None or not (self._more_may_come or self._groups.left()):
                    return group
            await waiter.wait()

    # --- a worker's side ----------------------------------------------------------------------

    async def get_sample(self, worker: str = LOCAL) -> RolloutSample | None:
        """Lease a sample: one that `worker` was interrupted in, then an orphaned one, then a new.

        Waits while others may still come back; None when all have ended. Raises WorkerGivenUp.
        """
        while True:
            waiter = self._changed.waiter()
            with self._lock:
                self._hear(worker)
                if worker in self._given_up:
                    raise WorkerGivenUp(f"worker {worker!r} was given up; use a new name")
                sample = self._next(worker)
                if sample is not None:
                    self._ledger.lease(sample.episode, worker)
                    self._events.emit("leased", sample.episode, worker=worker)
                if sample is not None or self._all_ended():
                    return sample
            await waiter.wait()

    async def put_data(self, sample: RolloutSample, worker: str = LOCAL) -> bool:
        """Take back a sample that has ended; False: it came too late, and is discarded.

        Told to `on_ended` before anything can interrupt. Raises NotLeased.
        """
        episode = sample.episode
        with self._lock:
            self._hear(worker)
            if not self._ledger.ended(episode, worker):
                logger.info("%s: a late result of worker %s is discarded", episode, worker)
                return False
            self._withdraw(episode)
            self._samples[episode] = sample
        if self._on_ended is not None:
            with self._telling:
                self._on_ended(sample)
        self._events.emit("ended", episode, **ended_facts(sample))
        with self._lock:
            self._inflight.group(episode.uid, self._groups.ended(sample))
        self._changed.tell()
        return True

    async def put_partial(self, sample: RolloutSample, worker: str = LOCAL) -> bool:
        """Take back a sample that was interrupted; False: its lease had been given up.

        Raises NotLeased.
        """
        episode = sample.episode
        with self._lock:
            self._hear(worker)
            kept = self._ledger.interrupted(episode, worker)
            if kept:
                self._inflight.discard(episode)
                self._samples[episode] = sample
                self._partial.setdefault(worker, OrderedDict())[episode] = None
                self._events.emit("interrupted", episode)
        self._changed.tell()
        return kept

    def give_back(self, sample: RolloutSample, worker: str = LOCAL) -> None:
        """Return a sample that was not begun; it keeps its place before all others."""
        with self._lock:
            if self._ledger.give_back(sample.episode, worker):
                self._inflight.discard(sample.episode)
                self._queue[sample.episode] = None
                self._queue.move_to_end(sample.episode, last=False)
                self._events.emit("given_back", sample.episode)
        self._changed.tell()

    def release_worker(self, worker: str) -> list[EpisodeId]:
        """Give a worker up: what it had leased goes to others, clean; its results may still come.

        Returns what it had leased. Idempotent.
        """
        with self._lock:
            self._given_up.add(worker)
            self._heard.pop(worker, None)
            lost = self._ledger.revoke(worker)
            for episode in lost:
                self._reissue(episode)
            self._partial[None].update(self._partial.pop(worker, {}))
        if lost:
            logger.warning("worker %s is given up; %d episodes start anew", worker, len(lost))
        self._changed.tell()
        return lost

    def expire(self) -> list[EpisodeId]:
        """Give up every worker that has been silent for longer than a lease lasts."""
        if self._lease_s is None:
            return []
        oldest = self._runner.now() - self._lease_s
        with self._lock:
            silent = [worker for worker, heard in self._heard.items() if heard < oldest]
        return [episode for worker in silent for episode in self.release_worker(worker)]

    def renew(self, worker: str = LOCAL) -> None:
        """Hear that `worker` lives."""
        with self._lock:
            self._hear(worker)

    def drop(self, episode: EpisodeId, cause: Cause) -> None:
        """End an episode without a sample; a result that comes later is discarded."""
        with self._lock:
            self._drop(episode, cause)
        self._changed.tell()

    # --- what is in flight --------------------------------------------------------------------

    def replica_inflight(self, episode: EpisodeId, worker: str = LOCAL) -> None:
        """Hear that a leased episode waits for its first generation."""
        with self._lock:
            if self._ledger.owner(episode) == worker:
                self._inflight.add(episode, worker)

    def report_prediction(
        self, episode: EpisodeId, tokens: float, *, gen_turn_seq: int, worker: str = LOCAL
    ) -> bool:
        """Take the tokens that an episode will still generate, predicted after a turn.

        False when it is stale, and discarded. Raises ValueError for an impossible number.
        """
        with self._lock:
            return self._inflight.predict(episode, tokens, worker=worker, gen_turn_seq=gen_turn_seq)

    def get_priority_snapshot(self) -> PrioritySnapshot:
        """What is known of the episodes in flight; immutable, the same object until it changes."""
        with self._lock:
            return self._inflight.snapshot()

    def get_predictor_url(self) -> str | None:
        """Where lengths are predicted; None: nowhere, so that all are served as they come."""
        return self._predictor_url

    # --- in view ------------------------------------------------------------------------------

    def counts(self) -> LedgerCounts:
        """The ledger's columns."""
        with self._lock:
            return self._ledger.counts()

    def gauges(self) -> dict[str, float]:
        """Samples by place, and what is in flight."""
        with self._lock:
            counts = self._ledger.counts()
            return {
                "queued": counts.queued,
                "leased": counts.leased,
                "partial": counts.partial,
                "buffered": counts.buffered,
                "delivered": counts.delivered,
                "dropped": sum(counts.dropped.values()),
                "late": counts.late,
                "inflight": len(self._inflight),
                "stale_predictions": self._inflight.stale,
            }

    def check(self) -> None:
        """Assert the invariants."""
        with self._lock:
            self._ledger.check()
            state = self._ledger.state
            assert all(state(e) is SampleState.QUEUED for e in self._queue)
            waiting = [e for line in self._partial.values() for e in line]
            assert all(state(e) is SampleState.PARTIAL for e in waiting)
            counts = self._ledger.counts()
            assert (counts.queued, counts.partial) == (len(self._queue), len(waiting))
            assert len(self._samples) == counts.open + counts.buffered
            assert sum(left for _, left in self._groups.left()) == counts.open

    # --- inside, under the lock ---------------------------------------------------------------

    def _hear(self, worker: str) -> None:
        if worker not in self._given_up:
            self._heard[worker] = self._runner.now()

    def _next(self, worker: str) -> RolloutSample | None:
        for line in (self._partial.get(worker), self._partial[None], self._queue):
            if line:
                episode, _ = line.popitem(last=False)
                return self._samples[episode]
        return None

    def _all_ended(self) -> bool:
        return not self._more_may_come and not self._ledger.counts().open

    def _withdraw(self, episode: EpisodeId) -> None:
        """Take an episode out of whatever line it stands in."""
        self._inflight.discard(episode)
        for line in (self._queue, *self._partial.values()):
            line.pop(episode, None)

    def _reissue(self, episode: EpisodeId) -> None:
        """Queue a lost worker's episode again, as a copy: the worker may still write into its."""
        self._inflight.discard(episode)
        lost = self._samples[episode]
        if lost.attempt + 1 >= self._max_attempts:
            self._drop(episode, Cause.CANCELLED)
            return
        self._samples[episode] = _afresh(lost)
        self._events.emit("given_back", episode)
        self._queue[episode] = None
        self._queue.move_to_end(episode, last=False)

    def _drop(self, episode: EpisodeId, cause: Cause) -> None:
        self._ledger.drop(episode, cause)
        self._withdraw(episode)
        del self._samples[episode]
        self._inflight.group(episode.uid, self._groups.dropped(episode))
        self._events.emit("dropped", episode, cause=cause)
        logger.warning("%s is dropped: %s", episode, cause)


def _afresh(sample: RolloutSample) -> RolloutSample:
    """Copy what the trainer issued, for a new attempt that knows nothing of the last one."""
    return RolloutSample(
        episode=sample.episode,
        task=sample.task,
        validate=sample.validate,
        attempt=sample.attempt + 1,
        sampling=sample.sampling,
        raw_prompt=sample.raw_prompt,
        raw_prompt_ids=sample.raw_prompt_ids,
        metadata=dict(sample.metadata),
    )
