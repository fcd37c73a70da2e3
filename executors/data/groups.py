"""Groups: which samples of each prompt have ended, which groups are complete, and under what rules.

    add ▶ open ▶ begun ▶ complete ▶ taken

A complete group has exactly as many members as were asked for: whoever ended without a sample has a
stand-in, masked and with its cause. Pure; the coordinator calls it under its lock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from agentflow.outcomes import make_fallback
from agentflow.types import Cause, Ending, RolloutSample

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from agentflow.types import EpisodeId

Group = tuple[RolloutSample, ...]
"""The samples of one prompt, by replica_index."""


class StragglerRule(StrEnum):
    """What becomes of a group whose deadline has passed."""

    WAIT = "wait"
    """Nothing: cutting stragglers biases lengths."""
    CLOSE = "close"
    """It is complete now: stand-ins take the places of members that have not ended."""
    REFILL = "refill"
    """Members that were begun and have not ended are dropped, and others are issued for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRules:
    """How groups come to the trainer. The defaults only ever wait."""

    buffer: int | None = None
    """Groups that are begun or complete, and not taken; no further one is begun. None: no limit."""
    straggler: StragglerRule = StragglerRule.WAIT
    deadline_s: float = float("inf")
    """From the first member's beginning."""
    refills: int = 2
    """Deadlines at which a group is refilled; at the next one it is closed."""
    staleness: int | None = None
    """Versions that a sample's oldest generated token may be behind; None: any number."""
    retries: int = 0
    """Failures of one kind that a prompt may have and be tried again; then they count."""
    dead_in_a_row: int | None = None
    """Groups without a usable sample, one after the other, that end the work; None: any number,
    and they are delivered like others. Otherwise they are dropped."""


@dataclass(slots=True, kw_only=True)
class _Open:
    """A group that is not complete."""

    size: int = 0
    waiting: dict[EpisodeId, bool] = field(default_factory=dict)
    """Members that have not ended, and whether they were begun."""
    members: list[RolloutSample] = field(default_factory=list)
    """Those that have, and stand-ins."""
    next_index: int = 0
    begun_at: float | None = None
    refills: int = 0
    trains: bool = True
    """Validation is not counted."""
    failures: dict[Cause, int] = field(default_factory=dict)


class Groups:
    """Open groups by uid, and complete ones in the order of completion."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._complete: deque[Group] = deque()
        self._untaken = 0

    # --- reading ------------------------------------------------------------------------------

    @property
    def untaken(self) -> int:
        """Groups, validation left out, that are begun or complete."""
        return self._untaken

    @property
    def complete(self) -> int:
        """Groups that could be taken."""
        return len(self._complete)

    def left(self) -> Iterator[tuple[str, int]]:
        """Open groups and how many of each have not ended."""
        return ((uid, len(group.waiting)) for uid, group in self._open.items())

    def waiting(self, uid: str, *, begun: bool | None = None) -> list[EpisodeId]:
        """Members of a group that have not ended; those alone that were `begun`, or were not."""
        group = self._open.get(uid)
        members = group.waiting.items() if group is not None else ()
        return [episode for episode, is_begun in members if begun in {None, is_begun}]

    def is_begun(self, uid: str) -> bool:
        """Whether an open group has a member that was begun."""
        group = self._open.get(uid)
        return group is not None and group.begun_at is not None

    def is_due(self, among: Collection[str] | None, but: Collection[str]) -> bool:
        """Whether an open group of those that `take_one` looks for may still complete."""
        if among is not None:
            return any(uid in self._open for uid in among)
        return any(uid not in but for uid in self._open)

    def overdue(self, begun_before: float) -> list[str]:
        """Open groups that were begun before."""
        return [
            uid
            for uid, group in self._open.items()
            if group.begun_at is not None and group.begun_at <= begun_before
        ]

    # --- moving -------------------------------------------------------------------------------

    def add(self, samples: Sequence[RolloutSample]) -> Iterator[tuple[str, int]]:
        """Open groups, or widen them; yields each uid and how many of it have not ended."""
        for sample in samples:
            group = self._open.get(sample.episode.uid)
            if group is None:
                group = self._open[sample.episode.uid] = _Open()
            group.size += 1
            group.trains = not sample.validate
            group.waiting[sample.episode] = False
            group.next_index = max(group.next_index, sample.episode.replica_index + 1)
        uids = {sample.episode.uid: None for sample in samples}
        return ((uid, len(self._open[uid].waiting)) for uid in uids)

    def begin(self, episode: EpisodeId, now: float) -> None:
        """A member is begun."""
        group = self._open[episode.uid]
        group.waiting[episode] = True
        if group.begun_at is None:
            group.begun_at = now
            self._untaken += group.trains

    def replace(self, episode: EpisodeId) -> int:
        """Go on with another member instead; returns the replica_index to issue it under."""
        group = self._open[episode.uid]
        del group.waiting[episode]
        group.size -= 1
        return group.next_index

    def refill(self, uid: str, now: float, *, at_most: int) -> bool:
        """Give a group another deadline, counted from now; False when it has had its share."""
        group = self._open[uid]
        if group.refills >= at_most:
            return False
        group.refills += 1
        group.begun_at = now
        return True

    def failed(self, episode: EpisodeId, cause: Cause) -> int:
        """Count a failure of a prompt; returns how many it has had for this cause."""
        failures = self._open[episode.uid].failures
        failures[cause] = failures.get(cause, 0) + 1
        return failures[cause]

    def ended(self, sample: RolloutSample) -> int:
        """Take a sample that has ended; returns how many of its group are left."""
        return self._one_less(sample.episode, sample)

    def dropped(self, sample: RolloutSample, ending: Ending) -> int:
        """Let a stand-in take the place of a member; returns how many of its group are left."""
        return self._one_less(sample.episode, stand_in(sample, ending))

    def discard(self, uid: str) -> list[EpisodeId]:
        """Forget a group that may be open; returns its members that ended with a sample."""
        group = self._open.pop(uid, None)
        if group is None:
            return []
        self._untaken -= group.trains and group.begun_at is not None
        return [sample.episode for sample in group.members]

    def take_one(
        self, among: Collection[str] | None = None, but: Collection[str] = ()
    ) -> Group | None:
        """Take the group that has been complete for longest, of `among`, or of all `but` some."""
        for group in self._complete:
            uid = group[0].episode.uid
            if uid in among if among is not None else uid not in but:
                self._complete.remove(group)
                self._untaken -= not group[0].validate
                return group
        return None

    def _one_less(self, episode: EpisodeId, member: RolloutSample) -> int:
        group = self._open[episode.uid]
        del group.waiting[episode]
        group.members.append(member)
        if not group.waiting:
            del self._open[episode.uid]
            self._untaken += group.trains and group.begun_at is None
            self._complete.append(tuple(sorted(group.members, key=_place)))
        return len(group.waiting)

    def check(self) -> None:
        """Assert the invariants."""
        begun = sum(g.trains and g.begun_at is not None for g in self._open.values())
        assert self._untaken == begun + sum(not g[0].validate for g in self._complete)
        for group in self._open.values():
            assert group.waiting
            assert group.size == len(group.waiting) + len(group.members)


def is_dead(group: Group) -> bool:
    """Whether no member can be trained on."""
    return all(sample.remove_sample for sample in group)


def stand_in(sample: RolloutSample, ending: Ending) -> RolloutSample:
    """Make the masked sample that keeps a member's place in its group."""
    made = RolloutSample(
        episode=sample.episode,
        task=sample.task,
        validate=sample.validate,
        attempt=sample.attempt,
        raw_prompt=sample.raw_prompt,
        raw_prompt_ids=sample.raw_prompt_ids,
        metadata=dict(sample.metadata),
    )
    make_fallback(made, ending)
    return made


def without_stale(group: Group, *, oldest: int, drop: Callable[[RolloutSample], None]) -> Group:
    """Put stand-ins in the place of members with tokens older than version `oldest`."""
    return tuple(_fresh(sample, oldest, drop) for sample in group)


def _fresh(
    sample: RolloutSample, oldest: int, drop: Callable[[RolloutSample], None]
) -> RolloutSample:
    version = oldest_version(sample)
    if sample.validate or version is None or version >= oldest:
        return sample
    drop(sample)
    message = f"has tokens of version {version}; the oldest that may be trained on is {oldest}"
    return stand_in(sample, Ending(cause=Cause.STALE, phase="group", message=message))


def oldest_version(sample: RolloutSample) -> int | None:
    """Return the oldest weight version over the generated tokens; None when there are none."""
    versions = sample.weight_versions[sample.response_mask == 1]
    return int(versions.min()) if len(versions) else None


def _place(sample: RolloutSample) -> int:
    return sample.episode.replica_index
