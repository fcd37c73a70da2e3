"""DataCoordinator: every sample between the trainer that issues it and the trainer that takes it.

    add ▶ queue ▶ get_sample ▶ worker ▶ put_data ▶ groups ▶ take_groups
                      ▲ partial first    │ put_partial
                      └──────────────────┘

Owns the lock around the books (`books`), the waiting, and who is told of what. Callable from any
thread: a call that changes something holds one lock and never waits in it; only
`get_sample` and `next_group` wait, on the caller's own loop. A sample is leased in the same step in
which `get_sample` returns it, so that no cancellation can lose one.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from agentflow.errors import AgentflowError
from agentflow.observe.events import NullEvents
from agentflow.types import Cause, Ending, EpisodeId, RolloutSample
from executors.data.books import Books, DeadGroups, Outcome, afresh
from executors.data.groups import Group, GroupRules
from executors.data.observers import Observers
from executors.runs.sample_rows import ended_facts
from executors.wakeups import Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from agentflow.protocols import EventSink, Runner
    from executors.data.books import Restored
    from executors.data.journal import Journal
    from executors.data.ledger import LedgerCounts
    from executors.data.observers import BookObserver
    from executors.wakeups import Waiter
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
        rules: GroupRules | None = None,
        observer: BookObserver | None = None,
        journal: Journal | None = None,
    ) -> None:
        """`on_ended` sees every sample once, on the thread of the worker that returned it.

        A worker that is silent for `lease_s` seconds is given up by `expire`. An episode that was
        begun `max_attempts` times is dropped instead of being queued again. `rules` say how groups
        come to the trainer; without them everything is waited for. With `journal` a sample counts
        in its group once it is committed there.
        """
        self._runner = runner
        self._on_ended = on_ended
        self._events = events if events is not None else NullEvents()
        self._predictor_url = predictor_url
        self.lease_s = lease_s
        """How long a worker may be silent; None: for ever."""
        self._journal = journal
        self._lock = threading.Lock()
        self._telling = threading.Lock()
        self._changed = Wakeups()
        self._books = Books(
            rules=rules or GroupRules(),
            max_attempts=max_attempts,
            observer=Observers(*(o for o in (observer, journal) if o is not None)),
            events=self._events,
        )
        self._withdraw: dict[str, Callable[[RolloutSample], None]] = {}
        self._heard: dict[str, float] = {}
        self._given_up: set[str] = set()
        self._slots: dict[str, int] = {}
        """Of workers that samples are shared out among."""
        self._more_may_come = True
        self._failure: BaseException | None = None

    # --- the trainer's side -------------------------------------------------------------------

    def add(self, samples: Iterable[RolloutSample]) -> None:
        """Issue samples; those of one uid are a group. Raises ValueError for a second of one name.

        All members of a group come in one call.
        """
        with self._changing():
            self._books.add(list(samples))

    def add_prompt(self, sample: RolloutSample, *, n: int) -> None:
        """Issue a prompt `n` times, as replicas 0 to n - 1 of one group."""
        self.add(replicas(sample, n=n))

    def restore(self, members: Sequence[Restored]) -> None:
        """Take in what an earlier process had of one group; none of it is new to an observer."""
        with self._changing():
            self._books.restore(members)

    def finish(self) -> None:
        """Say that no sample will be added; `get_sample` gives None once all have ended."""
        with self._changing():
            self._more_may_come = False

    def check_open(self) -> None:
        """Raise what `fail` was told, and RuntimeError after `finish`."""
        with self._lock:
            self._raise_failure()
            if not self._more_may_come:
                raise RuntimeError("finish() said that nothing more comes; make a new backend")

    def fail(self, failure: BaseException) -> None:
        """Let everybody who waits here, or comes to, see that the work cannot go on."""
        with self._changing():
            self._failure = self._failure or failure

    def take_groups(self) -> list[Group]:
        """Take every group that is complete, in the order of completion: it is delivered now.

        Stand-ins keep the places of members that were dropped.
        """
        with self._changing():
            groups = list[Group]()
            while (group := self._books.take()) is not None:
                groups.append(group)
        return groups

    async def next_group(
        self, among: Collection[str] | None = None, *, but: Collection[str] = ()
    ) -> Group | None:
        """Wait for complete groups and take the first; None when there will never be another.

        Looks at groups with a uid `among` those given, or at all `but` some. Raises DeadGroups, and
        what `fail` was told.
        """
        while True:
            waiter = self._changed.waiter()
            with self._taking():
                self._raise_failure()
                try:
                    group = self._books.take(among, but)
                except DeadGroups as failure:
                    self._failure = failure
                    raise
                due = self._books.groups.is_due(among, but)
                if group is not None or not (due or (among is None and self._more_may_come)):
                    return group
            await waiter.wait()

    def drop_group(self, uid: str, ending: Ending) -> None:
        """Drop a group that is not taken yet; whoever works on it is told to stop."""
        with self._changing():
            self._books.drop_group(uid, ending)

    def close_overdue(self) -> None:
        """Do what the rules say about groups whose deadline has passed."""
        with self._changing():
            self._books.close_overdue(self._runner.now())

    def weights_updated(self, version: int) -> None:
        """Hear that the trainer's weights are `version` now, from which staleness is counted.

        Raises ValueError for a version below the last one.
        """
        with self._changing():
            if version < self._books.version:
                raise ValueError(f"version {version} is below the last one, {self._books.version}")
            self._books.version = version

    # --- a worker's side ----------------------------------------------------------------------

    def on_withdrawn(self, worker: str, call: Callable[[RolloutSample], None]) -> None:
        """Call `call`, on any thread, with each sample of `worker` that was dropped."""
        with self._lock:
            self._withdraw[worker] = call

    def share_among(self, worker: str, slots: int) -> None:
        """Share samples out among all of which this is said, with so many `slots` each.

        One with free slots gets what is new before another that has more under way.
        """
        with self._changing():
            self._slots[worker] = slots

    async def get_sample(self, worker: str = LOCAL) -> RolloutSample | None:
        """Lease a sample: one that `worker` was interrupted in, then an orphaned one, then a new.

        Waits while others may still come back, or another worker is to have the next; None when all
        have ended. Raises WorkerGivenUp, and what `fail` was told.
        """
        waiter: Waiter | None = None
        while True:
            with self._lock:
                self._hear(worker)
                if worker in self._given_up:
                    raise WorkerGivenUp(f"worker {worker!r} was given up; use a new name")
                self._raise_failure()
                sample = self._books.next(worker, self._runner.now(), own=self._is_ahead(worker))
                ended = self._all_ended()
            if sample is not None and len(self._slots) > 1:
                self._changed.tell()  # it may be another's turn now
            if sample is not None or ended:
                return sample
            if waiter is not None:
                await waiter.wait()
            waiter = self._changed.waiter()  # and look again: a change from now on wakes it

    async def put_data(self, sample: RolloutSample, worker: str = LOCAL) -> bool:
        """Take back a sample that has ended; False: it came too late, or is tried again.

        Told to `on_ended` before anything can interrupt. Raises NotLeased.
        """
        with self._lock:
            self._hear(worker)
            outcome = self._books.ended(sample, worker)
        if outcome is Outcome.COUNTS:
            if self._on_ended is not None:
                with self._telling:
                    self._on_ended(sample)
            self._events.emit("ended", sample.episode, **ended_facts(sample))
            if self._journal is None:
                self._complete(sample)
            else:
                self._journal.ended(sample, partial(self._complete, sample))
        self._changed.tell()
        return outcome is Outcome.COUNTS

    def _complete(self, sample: RolloutSample) -> None:
        """Let an ended sample count; on the journal's thread where there is one."""
        with self._changing():
            self._books.complete(sample)

    async def put_partial(self, sample: RolloutSample, worker: str = LOCAL) -> bool:
        """Take back a sample that was interrupted; False: its lease had been given up.

        Raises NotLeased.
        """
        with self._changing():
            self._hear(worker)
            return self._books.interrupted(sample, worker)

    def give_back(self, sample: RolloutSample, worker: str = LOCAL) -> None:
        """Return a sample that was not begun; it keeps its place before all others."""
        with self._changing():
            self._books.give_back(sample.episode, worker)

    def abandon(self, sample: RolloutSample, worker: str = LOCAL) -> None:
        """Hear that a sample that was dropped is worked on no more."""
        with self._lock:
            self._books.ledger.abandon(sample.episode, worker)

    def release_worker(self, worker: str) -> list[EpisodeId]:
        """Give a worker up: what it had leased goes to others, clean; its results may still come.

        Returns what it had leased. Idempotent.
        """
        with self._changing():
            self._given_up.add(worker)
            self._heard.pop(worker, None)
            self._withdraw.pop(worker, None)
            self._slots.pop(worker, None)
            lost = self._books.revoke(worker)
        if lost:
            logger.warning("worker %s is given up; %d episodes start anew", worker, len(lost))
        return lost

    def expire(self) -> list[EpisodeId]:
        """Give up every worker that has been silent for longer than a lease lasts."""
        if self.lease_s is None:
            return []
        oldest = self._runner.now() - self.lease_s
        with self._lock:
            silent = [worker for worker, heard in self._heard.items() if heard < oldest]
        return [episode for worker in silent for episode in self.release_worker(worker)]

    def renew(self, worker: str = LOCAL) -> None:
        """Hear that `worker` lives."""
        with self._lock:
            self._hear(worker)

    def drop(self, episode: EpisodeId, cause: Cause, message: str = "") -> None:
        """End an episode without a sample; a result that comes later is discarded."""
        with self._changing():
            self._books.drop(episode, Ending(cause=cause, phase="group", message=message))

    # --- what is in flight --------------------------------------------------------------------

    def replica_inflight(self, episode: EpisodeId, worker: str = LOCAL) -> None:
        """Hear that a leased episode waits for its first generation."""
        with self._lock:
            if self._books.ledger.owner(episode) == worker:
                attempt = self._books.samples[episode].attempt
                self._books.inflight.add(episode, worker, attempt)

    def report_prediction(
        self,
        episode: EpisodeId,
        tokens: float,
        *,
        gen_turn_seq: int,
        attempt: int,
        worker: str = LOCAL,
    ) -> bool:
        """Take the tokens that an episode will still generate, predicted after a turn of `attempt`.

        False when it is stale, and discarded. Raises ValueError for an impossible number.
        """
        with self._lock:
            return self._books.inflight.predict(
                episode, tokens, worker=worker, attempt=attempt, gen_turn_seq=gen_turn_seq
            )

    def get_priority_snapshot(self) -> PrioritySnapshot:
        """What is known of the episodes in flight; immutable, the same object until it changes."""
        with self._lock:
            return self._books.inflight.snapshot()

    def get_predictor_url(self) -> str | None:
        """Where lengths are predicted; None: nowhere, so that all are served as they come."""
        return self._predictor_url

    # --- in view ------------------------------------------------------------------------------

    def counts(self) -> LedgerCounts:
        """The ledger's columns."""
        with self._lock:
            return self._books.ledger.counts()

    def gauges(self) -> dict[str, float]:
        """Samples by place, groups, and what is in flight."""
        with self._lock:
            books = self._books
            counts = books.ledger.counts()
            return {
                "queued": counts.queued,
                "leased": counts.leased,
                "partial": counts.partial,
                "buffered": counts.buffered,
                "delivered": counts.delivered,
                "dropped": sum(counts.dropped.values()),
                "late": counts.late,
                "inflight": len(books.inflight),
                "stale_predictions": books.inflight.stale,
                "groups_complete": books.groups.complete,
                "groups_untaken": books.groups.untaken,
                "groups_dead": books.dead,
                "retries": books.retries,
            }

    def check(self) -> None:
        """Assert the invariants."""
        with self._lock:
            self._books.check()

    # --- inside -------------------------------------------------------------------------------

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Hold the lock; then tell workers what was withdrawn, and everybody who waits."""
        with self._lock:
            yield
            withdrawn = self._take_withdrawn()
        for call, sample in withdrawn:
            call(sample)
        self._changed.tell()

    @contextmanager
    def _taking(self) -> Iterator[None]:
        """Hold the lock; then tell who waits, if there is room for another group, or no hope."""
        with self._lock:
            before = self._books.groups.untaken
            try:
                yield
            finally:
                is_news = self._books.groups.untaken < before or self._failure is not None
        if is_news:
            self._changed.tell()

    def _take_withdrawn(self) -> list[tuple[Callable[[RolloutSample], None], RolloutSample]]:
        withdrawn, self._books.withdrawn = self._books.withdrawn, []
        return [(self._withdraw[w], sample) for w, sample in withdrawn if w in self._withdraw]

    def _hear(self, worker: str) -> None:
        if worker not in self._given_up:
            self._heard[worker] = self._runner.now()

    def _is_ahead(self, worker: str) -> bool:
        """Whether another one with free slots has less under way."""
        under_way = self._books.ledger.under_way
        own = under_way(worker)
        return any(under_way(other) < min(own, slots) for other, slots in self._slots.items())

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _all_ended(self) -> bool:
        return not self._more_may_come and not self._books.ledger.counts().open


def replicas(sample: RolloutSample, *, n: int) -> list[RolloutSample]:
    """Copy a prompt `n` times, as replicas 0 to n - 1 of one group."""
    uid = sample.episode.uid
    return [afresh(sample, episode=EpisodeId(uid=uid, replica_index=i)) for i in range(n)]
