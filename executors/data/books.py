"""Books: where every sample of a coordinator is, and every rule by which it moves.

    queue ▶ leased ▶ (partial ▶ leased) ▶ ended ▶ group complete ▶ taken        any ▶ dropped

Owns the samples, the lines they wait in, the ledger, the groups and what is known of those in
flight. Pure: no lock, no clock, no waiting; the coordinator calls it under its lock and tells
workers what became of their samples (`withdrawn`) and observers what happened (`BookObserver`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING

from agentflow.errors import AgentflowError
from agentflow.observe.events import NullEvents
from agentflow.swe.sample import SWESample
from agentflow.types import Blame, Cause, Ending, EpisodeId, RolloutSample
from executors.data.groups import GroupRules, Groups, StragglerRule, is_dead, without_stale
from executors.data.inflight import InflightRegistry
from executors.data.ledger import SampleLedger, SampleState
from executors.data.observers import BookObserver

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentflow.protocols import EventSink
    from executors.data.groups import Group

logger = logging.getLogger(__name__)


class DeadGroups(AgentflowError):
    """Group after group had no sample that can be trained on."""


class Outcome(Enum):
    """What became of a result."""

    COUNTS = auto()
    LATE = auto()
    """Another one was first, or the episode was dropped: it is discarded."""
    RETRIED = auto()
    """It failed in a way that may pass, and is queued again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A sample of an earlier process."""

    sample: RolloutSample
    """With its result where it has ended, with `partial_agent_data` where it can go on."""
    ended: bool = False
    dropped: Ending | None = None
    """Why it was dropped; it then only keeps its place in the group."""


class Books:
    """The state of one coordinator."""

    def __init__(
        self,
        *,
        rules: GroupRules,
        max_attempts: int,
        observer: BookObserver | None = None,
        events: EventSink | None = None,
    ) -> None:
        self.rules = rules
        self._max_attempts = max_attempts
        self._events = events if events is not None else NullEvents()
        self._observer = observer if observer is not None else BookObserver()
        self.ledger = SampleLedger()
        self.inflight = InflightRegistry()
        self.groups = Groups()
        self.samples: dict[EpisodeId, RolloutSample] = {}
        self.validation: OrderedDict[EpisodeId, None] = OrderedDict()
        self.queue: OrderedDict[EpisodeId, None] = OrderedDict()
        self.partial: dict[str | None, OrderedDict[EpisodeId, None]] = {None: OrderedDict()}
        self.withdrawn: list[tuple[str, RolloutSample]] = []
        """Workers and samples of theirs that were dropped; the coordinator tells and clears it."""
        self.version = 0
        """The trainer's weights."""
        self.retries = self.dead = 0
        self._dead_in_a_row: list[str] = []

    # --- in -----------------------------------------------------------------------------------

    def add(self, samples: Sequence[RolloutSample]) -> None:
        """Issue samples. Raises ValueError for a second of one name, and changes nothing then."""
        self.ledger.issue_all([sample.episode for sample in samples])
        for sample in samples:
            self.samples[sample.episode] = sample
            line = self.validation if sample.validate else self.queue
            line[sample.episode] = None
            self._events.emit("issued", sample.episode)
        for uid, left in self.groups.add(samples):
            self.inflight.group(uid, left)
        self._observer.issued(samples)

    def restore(self, members: Sequence[Restored]) -> None:
        """Take in what an earlier process had of one group."""
        samples = [member.sample for member in members]
        self.ledger.issue_all([sample.episode for sample in samples])
        for uid, left in self.groups.add(samples):
            self.inflight.group(uid, left)
        for member in members:
            self._restore(member)

    def _restore(self, member: Restored) -> None:
        sample, episode = member.sample, member.sample.episode
        if member.dropped is not None:
            self.ledger.drop(episode, member.dropped.cause)
            self.inflight.group(episode.uid, self.groups.dropped(sample, member.dropped))
            return
        self.samples[episode] = sample
        if member.ended:
            self.ledger.restore(episode, SampleState.BUFFERED)
            self.inflight.group(episode.uid, self.groups.ended(sample))
        elif sample.partial_agent_data is not None:
            self.ledger.restore(episode, SampleState.PARTIAL)
            self.partial[None][episode] = None
        else:
            (self.validation if sample.validate else self.queue)[episode] = None

    # --- to workers and back ------------------------------------------------------------------

    def next(self, worker: str, now: float, *, own: bool = False) -> RolloutSample | None:
        """Lease what `worker` was interrupted in, then orphans, validation, then what is new.

        With `own` the first of these alone.
        """
        common = () if own else (self.partial[None], self.validation, self.queue)
        for line in (self.partial.get(worker), *common):
            if not line or (line is self.queue and not self._may_begin()):
                continue
            episode, _ = line.popitem(last=False)
            self.ledger.lease(episode, worker)
            self.groups.begin(episode, now)
            self._events.emit("leased", episode, worker=worker)
            sample = self.samples[episode]
            sample.restart = self._is_stale(sample)
            return sample
        return None

    def _may_begin(self) -> bool:
        """Whether the first in the queue may be begun though the trainer has not taken others."""
        buffer = self.rules.buffer
        if buffer is None or self.groups.untaken < buffer:
            return True
        return self.groups.is_begun(next(iter(self.queue)).uid)

    def _is_stale(self, sample: RolloutSample) -> bool:
        """Whether an interrupted episode has tokens that are too old to go on with."""
        partial = sample.partial_agent_data
        if self.rules.staleness is None or sample.validate or not isinstance(partial, SWESample):
            return False
        oldest = partial.record.oldest_version
        return oldest is not None and oldest < self.version - self.rules.staleness

    def ended(self, sample: RolloutSample, worker: str) -> Outcome:
        """Take a result; one that counts is `complete`d next. Raises NotLeased."""
        episode = sample.episode
        if self._may_retry(sample):
            if not self.ledger.give_back(episode, worker):
                return Outcome.LATE
            self.retries += 1
            self._start_anew(afresh(sample))
            return Outcome.RETRIED
        if not self.ledger.ended(episode, worker):
            logger.info("%s: a late result of worker %s is discarded", episode, worker)
            return Outcome.LATE
        self._leave_lines(episode)
        self.samples[episode] = sample
        return Outcome.COUNTS

    def complete(self, sample: RolloutSample) -> None:
        """Let an ended sample count in its group, unless it was dropped since."""
        episode, ending = sample.episode, sample.ending
        if self.samples.get(episode) is not sample:
            return
        self.inflight.group(episode.uid, self.groups.ended(sample))
        if self.rules.retries and ending is not None and _may_pass(ending.cause):
            for other in self.groups.waiting(episode.uid, begun=False):  # they would end like it
                self.drop(other, ending)

    def interrupted(self, sample: RolloutSample, worker: str) -> bool:
        """Take an interrupted sample back; False: its lease had been given up. Raises NotLeased."""
        episode = sample.episode
        if not self.ledger.interrupted(episode, worker):
            return False
        self.inflight.discard(episode)
        self.samples[episode] = sample
        self.partial.setdefault(worker, OrderedDict())[episode] = None
        self._observer.interrupted(sample)
        self._events.emit("interrupted", episode)
        return True

    def give_back(self, episode: EpisodeId, worker: str) -> None:
        """Queue a sample that was not begun before all others."""
        if self.ledger.give_back(episode, worker):
            self.inflight.discard(episode)
            self._queue_first(episode)
            self._events.emit("given_back", episode)

    def revoke(self, worker: str) -> list[EpisodeId]:
        """Start anew what a lost worker had; returns it."""
        lost = self.ledger.revoke(worker)
        for episode in lost:
            sample = self.samples[episode]
            self._observer.lost(sample)
            if sample.attempt + 1 >= self._max_attempts:
                message = f"was begun {self._max_attempts} times and lost its worker each time"
                self.inflight.discard(episode)
                self.drop(episode, Ending(cause=Cause.CANCELLED, phase="lease", message=message))
            else:  # a copy: the worker may still write into its own
                self._start_anew(afresh(sample))
        self.partial[None].update(self.partial.pop(worker, {}))
        return lost

    def _may_retry(self, sample: RolloutSample) -> bool:
        """Whether a failure may pass; the same kind is tried again a small number of times."""
        ending = sample.ending
        if not self.rules.retries or ending is None or not _may_pass(ending.cause):
            return False
        if self.ledger.state(sample.episode) is not SampleState.LEASED:
            return False
        if sample.attempt + 1 >= self._max_attempts:
            return False
        return self.groups.failed(sample.episode, ending.cause) <= self.rules.retries

    def _start_anew(self, sample: RolloutSample) -> None:
        self.inflight.discard(sample.episode)
        self.samples[sample.episode] = sample
        self._queue_first(sample.episode)
        self._observer.retried(sample)
        self._events.emit("given_back", sample.episode)

    def _queue_first(self, episode: EpisodeId) -> None:
        line = self.validation if self.samples[episode].validate else self.queue
        line[episode] = None
        line.move_to_end(episode, last=False)

    def _leave_lines(self, episode: EpisodeId) -> None:
        self.inflight.discard(episode)
        for line in (self.queue, self.validation, *self.partial.values()):
            line.pop(episode, None)

    # --- to the trainer -----------------------------------------------------------------------

    def take(self, among: Collection[str] | None = None, but: Collection[str] = ()) -> Group | None:
        """Deliver the group that has been complete for longest; see `Groups.take_one`.

        Raises DeadGroups.
        """
        while (group := self.groups.take_one(among, but)) is not None:
            if self.rules.staleness is not None:
                oldest = self.version - self.rules.staleness
                group = without_stale(group, oldest=oldest, drop=self._drop_stale)
            if not self._is_dropped_dead(group):
                for sample in self._in_ledger(group):
                    self.ledger.deliver(sample.episode)
                    del self.samples[sample.episode]
                self._observer.delivered(group)
                return group
        return None

    def _in_ledger(self, group: Group) -> list[RolloutSample]:
        return [s for s in group if self.ledger.state(s.episode) is SampleState.BUFFERED]

    def _is_dropped_dead(self, group: Group) -> bool:
        """Drop a group that cannot be trained on, where the rules say so; see that it ends."""
        limit = self.rules.dead_in_a_row
        if limit is None or group[0].validate:
            return False
        if not is_dead(group):
            self._dead_in_a_row.clear()
            return False
        ending = group[-1].ending
        assert ending is not None
        self.dead += 1
        self._dead_in_a_row.append(f"{group[0].episode.uid}: {ending.cause}: {ending.message}")
        for sample in self._in_ledger(group):
            self._drop_ended(sample, sample.ending or ending)
        self._observer.group_dropped(group[0].episode.uid)
        logger.warning("group %s is dropped: %s", group[0].episode.uid, ending.cause)
        if len(self._dead_in_a_row) >= limit:
            raise DeadGroups(
                f"{limit} groups in a row had no sample to train on; the last ones:"
                f" {'; '.join(self._dead_in_a_row[-3:])}"
            )
        return True

    def _drop_stale(self, sample: RolloutSample) -> None:
        self._drop_ended(sample, Ending(cause=Cause.STALE, phase="group"))

    def _drop_ended(self, sample: RolloutSample, ending: Ending) -> None:
        self.ledger.drop(sample.episode, ending.cause)
        del self.samples[sample.episode]
        self._tell_dropped(sample, ending)

    # --- dropping -----------------------------------------------------------------------------

    def drop(self, episode: EpisodeId, ending: Ending) -> None:
        """End an episode without a sample; a stand-in keeps its place in the group."""
        sample = self._drop_open(episode, ending)
        self.inflight.group(episode.uid, self.groups.dropped(sample, ending))

    def drop_group(self, uid: str, ending: Ending) -> None:
        """Drop a whole group that is not taken; nothing of it comes to the trainer."""
        for episode in self.groups.waiting(uid):
            self._drop_open(episode, ending)
        group = self.groups.take_one((uid,))
        ended = self.groups.discard(uid) if group is None else [s.episode for s in group]
        for episode in ended:
            if self.ledger.state(episode) is SampleState.BUFFERED:
                self._drop_ended(self.samples[episode], ending)
        self.inflight.group(uid, 0)
        self._observer.group_dropped(uid)

    def close_overdue(self, now: float) -> None:
        """Do what the rules say about groups whose deadline has passed."""
        rules = self.rules
        if rules.straggler is StragglerRule.WAIT:
            return
        message = f"its group was begun more than {rules.deadline_s:g} s before"
        ending = Ending(cause=Cause.DEADLINE, phase="group", message=message)
        for uid in self.groups.overdue(now - rules.deadline_s):
            refills = rules.refills if rules.straggler is StragglerRule.REFILL else 0
            if self.groups.refill(uid, now, at_most=refills):
                for episode in self.groups.waiting(uid, begun=True):
                    self._refill(episode, ending)
            else:
                for episode in self.groups.waiting(uid):
                    self.drop(episode, ending)

    def _refill(self, episode: EpisodeId, ending: Ending) -> None:
        other = EpisodeId(uid=episode.uid, replica_index=self.groups.replace(episode))
        sample = self._drop_open(episode, ending)
        self._observer.replaced(sample)
        self.add([afresh(sample, episode=other)])
        self._queue_first(other)

    def _drop_open(self, episode: EpisodeId, ending: Ending) -> RolloutSample:
        owner = self.ledger.owner(episode)
        self.ledger.drop(episode, ending.cause)
        self._leave_lines(episode)
        sample = self.samples.pop(episode)
        if owner is not None:
            self.withdrawn.append((owner, sample))
        self._tell_dropped(sample, ending)
        logger.info("%s is dropped: %s", episode, ending.cause)
        return sample

    def _tell_dropped(self, sample: RolloutSample, ending: Ending) -> None:
        self._observer.dropped(sample, ending)
        self._events.emit("dropped", sample.episode, cause=ending.cause)

    def check(self) -> None:
        """Assert the invariants."""
        self.ledger.check()
        self.groups.check()
        state = self.ledger.state
        queued = [*self.queue, *self.validation]
        assert all(state(e) is SampleState.QUEUED for e in queued)
        waiting = [e for line in self.partial.values() for e in line]
        assert all(state(e) is SampleState.PARTIAL for e in waiting)
        counts = self.ledger.counts()
        assert (counts.queued, counts.partial) == (len(queued), len(waiting))
        assert len(self.samples) == counts.open + counts.buffered
        assert sum(left for _, left in self.groups.left()) >= counts.open


def _may_pass(cause: Cause) -> bool:
    """Whether an episode that ended for this cause may end otherwise when it is tried again."""
    interrupted = cause in {Cause.WEIGHT_SYNC, Cause.CANCELLED}
    return cause.blame is Blame.INFRASTRUCTURE and not interrupted


def afresh(sample: RolloutSample, *, episode: EpisodeId | None = None) -> RolloutSample:
    """Copy what the trainer issued, for a new attempt that knows nothing of the last one.

    With `episode`, for another member of the group.
    """
    spent = sample.facts.generated_tokens + sample.facts.forked_tokens + sample.restarted_tokens
    return RolloutSample(
        episode=episode or sample.episode,
        task=sample.task,
        validate=sample.validate,
        attempt=sample.attempt + 1 if episode is None else 0,
        sampling=sample.sampling,
        raw_prompt=sample.raw_prompt,
        raw_prompt_ids=sample.raw_prompt_ids,
        restarted_tokens=spent if episode is None else 0,
        stale_tokens=sample.stale_tokens if episode is None else 0,
        metadata=dict(sample.metadata),
    )
