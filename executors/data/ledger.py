"""SampleLedger: where every issued episode is, so that each one ends exactly once.

    queued ⇄ leased ⇄ partial       leased ▶ buffered ▶ delivered       any ▶ dropped(cause)

Pure bookkeeping: no samples, no clock, no I/O. Invariants (asserted by `check`): issued = queued +
leased + partial + buffered + delivered + dropped; a lease has one worker. A lease that was taken
away from a worker may still bring a result: the first one counts, later ones are `late`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from agentflow.errors import AgentflowError
from agentflow.types import EpisodeId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Cause


class NotLeased(AgentflowError):
    """A worker returned an episode that was never leased to it."""


class SampleState(StrEnum):
    """Where an episode is; the end states are only counted."""

    QUEUED = "queued"
    LEASED = "leased"
    PARTIAL = "partial"
    """Was interrupted; goes on first, with the worker that holds its environment."""
    BUFFERED = "buffered"
    """Has ended; the trainer has not taken it yet."""


@dataclass(slots=True, kw_only=True)
class LedgerCounts:
    """The ledger's columns."""

    issued: int = 0
    queued: int = 0
    leased: int = 0
    partial: int = 0
    buffered: int = 0
    delivered: int = 0
    dropped: dict[str, int] = field(default_factory=dict)
    """By cause."""
    late: int = 0
    """Results of leases that had been given up, when another one had been first; discarded."""
    revoked: int = 0
    """Leases taken away from workers that were given up."""

    @property
    def unaccounted(self) -> int:
        """What is left over; anything but 0 is a bug."""
        there = self.queued + self.leased + self.partial + self.buffered + self.delivered
        return self.issued - there - sum(self.dropped.values())

    @property
    def open(self) -> int:
        """Episodes that have not ended."""
        return self.queued + self.leased + self.partial

    def to_json(self) -> dict[str, object]:
        """Give the columns as summary.json has them."""
        return asdict(self) | {"unaccounted": self.unaccounted}


class SampleLedger:
    """The books of one coordinator."""

    def __init__(self) -> None:
        self._state: dict[EpisodeId, SampleState] = {}
        self._owner: dict[EpisodeId, str] = {}
        """Worker of a leased or partial episode; a partial one of a lost worker has none."""
        self._revoked: set[tuple[EpisodeId, str]] = set()
        """Leases that were taken away and have brought nothing yet."""
        self._under_way = Counter[str]()
        self._dropped: Counter[Cause] = Counter()
        self._totals = LedgerCounts()
        self._in = Counter[SampleState]()

    # --- reading ------------------------------------------------------------------------------

    def state(self, episode: EpisodeId) -> SampleState | None:
        """Where an episode is; None when it was never issued, or delivered or dropped."""
        return self._state.get(episode)

    def owner(self, episode: EpisodeId) -> str | None:
        """The worker that has it, or holds its environment."""
        return self._owner.get(episode)

    def owned_by(self, worker: str) -> list[EpisodeId]:
        """Return what `worker` has leased or interrupted, in the order in which it got them."""
        return [episode for episode, owner in self._owner.items() if owner == worker]

    def under_way(self, worker: str) -> int:
        """How many `worker` works on: what it has leased, and what was taken away meanwhile."""
        return self._under_way[worker]

    def counts(self) -> LedgerCounts:
        """Copy the columns."""
        totals = self._totals
        return LedgerCounts(
            issued=totals.issued,
            queued=self._in[SampleState.QUEUED],
            leased=self._in[SampleState.LEASED],
            partial=self._in[SampleState.PARTIAL],
            buffered=self._in[SampleState.BUFFERED],
            delivered=totals.delivered,
            dropped={str(cause): count for cause, count in self._dropped.items()},
            late=totals.late,
            revoked=totals.revoked,
        )

    # --- moving -------------------------------------------------------------------------------

    def issue(self, episode: EpisodeId) -> None:
        """Take a new episode in. Raises ValueError when it is in the books already."""
        self.issue_all([episode])

    def issue_all(self, episodes: Sequence[EpisodeId]) -> None:
        """Take new episodes in, all or none. Raises ValueError for one that is in the books."""
        for episode, times in Counter(episodes).items():
            if episode in self._state or times > 1:
                raise ValueError(
                    f"{episode} was issued already; uid and replica_index name it once"
                )
        for episode in episodes:
            self._totals.issued += 1
            self._move(episode, SampleState.QUEUED)

    def restore(self, episode: EpisodeId, state: SampleState) -> None:
        """Put an episode that was just issued where it was in an earlier process."""
        assert self._state[episode] is SampleState.QUEUED
        self._move(episode, state)

    def lease(self, episode: EpisodeId, worker: str) -> None:
        """Give a waiting episode to `worker`."""
        assert self._state[episode] in {SampleState.QUEUED, SampleState.PARTIAL}
        self._move(episode, SampleState.LEASED, worker)
        self._under_way[worker] += 1

    def interrupted(self, episode: EpisodeId, worker: str) -> bool:
        """Take an interrupted episode back; False: its lease had been given up, discard it.

        Raises NotLeased.
        """
        if self._returned(episode, worker):
            self._move(episode, SampleState.PARTIAL, worker)
            return True
        self._totals.late += 1
        return False

    def ended(self, episode: EpisodeId, worker: str) -> bool:
        """Take a result; False: another one was first, discard it. Raises NotLeased."""
        if self._returned(episode, worker):
            self._move(episode, SampleState.BUFFERED)
            return True
        if self._state.get(episode) in {None, SampleState.BUFFERED}:
            self._totals.late += 1
            return False
        if self._state[episode] is SampleState.LEASED:  # whoever has it now comes second
            self._revoke(episode)
        self._move(episode, SampleState.BUFFERED)
        return True

    def give_back(self, episode: EpisodeId, worker: str) -> bool:
        """Queue an episode that its worker did not begin; False: its lease had been given up."""
        if self._returned(episode, worker):
            self._move(episode, SampleState.QUEUED)
            return True
        return False

    def abandon(self, episode: EpisodeId, worker: str) -> None:
        """Hear that a lease that was taken away will bring nothing any more."""
        if (episode, worker) in self._revoked:
            self._revoked.remove((episode, worker))
            self._under_way[worker] -= 1

    def revoke(self, worker: str) -> list[EpisodeId]:
        """Give a worker up: what it had leased is queued again and returned.

        What it had interrupted stays partial, without an owner.
        """
        lost = list[EpisodeId]()
        for episode in self.owned_by(worker):
            if self._state[episode] is SampleState.PARTIAL:
                del self._owner[episode]
                continue
            self._revoke(episode)
            self._move(episode, SampleState.QUEUED)
            lost.append(episode)
        return lost

    def deliver(self, episode: EpisodeId) -> None:
        """The trainer has taken it."""
        assert self._state[episode] is SampleState.BUFFERED
        self._forget(episode)
        self._totals.delivered += 1

    def drop(self, episode: EpisodeId, cause: Cause) -> None:
        """End an episode without a sample. A worker that has it comes too late."""
        if self._state[episode] is SampleState.LEASED:
            self._revoke(episode)
        self._forget(episode)
        self._dropped[cause] += 1

    def _returned(self, episode: EpisodeId, worker: str) -> bool:
        """Whether `worker` has the lease; a lease that was taken away is used up by the call."""
        leased = self._state.get(episode) is SampleState.LEASED
        has_it = leased and self._owner[episode] == worker
        if not has_it:
            if (episode, worker) not in self._revoked:
                raise NotLeased(f"{episode} is not leased to {worker!r}, so it cannot come back")
            self._revoked.remove((episode, worker))
        self._under_way[worker] -= 1
        return has_it

    def _revoke(self, episode: EpisodeId) -> None:
        self._revoked.add((episode, self._owner[episode]))
        self._totals.revoked += 1

    def _move(self, episode: EpisodeId, state: SampleState, owner: str | None = None) -> None:
        if episode in self._state:
            self._forget(episode)
        self._state[episode] = state
        self._in[state] += 1
        if owner is not None:
            self._owner[episode] = owner

    def _forget(self, episode: EpisodeId) -> None:
        self._in[self._state.pop(episode)] -= 1
        self._owner.pop(episode, None)

    def check(self) -> None:
        """Assert the invariants."""
        assert self.counts().unaccounted == 0
        assert Counter(self._state.values()) == +self._in
        owned = {SampleState.LEASED, SampleState.PARTIAL}
        assert all(self._state[episode] in owned for episode in self._owner)
        leased = [e for e, state in self._state.items() if state is SampleState.LEASED]
        assert all(episode in self._owner for episode in leased)
        out = {(e, self._owner[e]) for e in leased}
        assert not out & self._revoked
        assert Counter(worker for _, worker in out | self._revoked) == +self._under_way
        assert self._totals.late + len(self._revoked) <= self._totals.revoked
