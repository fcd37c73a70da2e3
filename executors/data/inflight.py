"""InflightRegistry: the episodes that generate somewhere, what is predicted of them, snapshots.

Owns nothing that a lease does not own: an entry is made while its episode is leased and goes with
the lease, so that none can stay "running" without an owner. Pure; a snapshot is a copy, made once
a version, and nothing is sorted.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


class InflightRegistry:
    """Episodes in flight by identity, and groups by uid."""

    def __init__(self) -> None:
        self._attempt: dict[EpisodeId, tuple[str, int]] = {}
        """Who has it, and which of its attempts that is."""
        self._predicted: dict[EpisodeId, float] = {}
        self._gen_turn_seq: dict[EpisodeId, int] = {}
        """Generation that the prediction was made after."""
        self._group_left: dict[str, int] = {}
        self._version = 0
        self._snapshot = PrioritySnapshot()
        self.stale = 0
        """Predictions and reports that came too late and were discarded."""

    def __len__(self) -> int:
        return len(self._attempt)

    def __contains__(self, episode: object) -> bool:
        return episode in self._attempt

    def add(self, episode: EpisodeId, worker: str, attempt: int) -> None:
        """An episode generates at `worker` from now on."""
        self._attempt[episode] = worker, attempt
        self._gen_turn_seq.pop(episode, None)
        self._version += 1

    def discard(self, episode: EpisodeId) -> None:
        """It does no more."""
        if self._attempt.pop(episode, None) is not None:
            self._predicted.pop(episode, None)
            self._gen_turn_seq.pop(episode, None)
            self._version += 1

    def predict(
        self, episode: EpisodeId, tokens: float, *, worker: str, attempt: int, gen_turn_seq: int
    ) -> bool:
        """Take a prediction; False: it is stale, of an older turn or of another attempt.

        Raises ValueError for a number of tokens that cannot be.
        """
        if not 0 <= tokens < float("inf"):
            raise ValueError(f"{episode}: {tokens!r} predicted tokens; it must be a finite number")
        seen = self._gen_turn_seq.get(episode, -1)
        if self._attempt.get(episode) != (worker, attempt) or gen_turn_seq <= seen:
            self.stale += 1
            return False
        self._gen_turn_seq[episode] = gen_turn_seq
        self._predicted[episode] = tokens
        self._version += 1
        return True

    def group(self, uid: str, left: int) -> None:
        """Episodes of a group that have not ended; a group with none is forgotten."""
        if left:
            self._group_left[uid] = left
        else:
            self._group_left.pop(uid, None)
        self._version += 1

    def snapshot(self) -> PrioritySnapshot:
        """What is known now; the same object while nothing changes."""
        if self._snapshot.version != self._version:
            self._snapshot = PrioritySnapshot(
                version=self._version,
                predicted=MappingProxyType(self._predicted.copy()),
                group_left=MappingProxyType(self._group_left.copy()),
            )
        return self._snapshot
