"""Groups: which samples of each prompt have ended, and which groups are complete. Pure."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from agentflow.types import EpisodeId, RolloutSample

Group = tuple["RolloutSample", ...]
"""The samples of one prompt, by replica_index; those that were dropped are missing."""


class Groups:
    """Open groups by uid, and complete ones in the order of completion."""

    def __init__(self) -> None:
        self._left: dict[str, int] = {}
        self._ended: dict[str, list[RolloutSample]] = {}
        self._complete: deque[Group] = deque()

    def add(self, samples: Sequence[RolloutSample]) -> Iterator[tuple[str, int]]:
        """Open groups, or widen them; yields each uid and how many of it have not ended."""
        for sample in samples:
            uid = sample.episode.uid
            self._left[uid] = self._left.get(uid, 0) + 1
        return ((uid, self._left[uid]) for uid in {s.episode.uid: None for s in samples})

    def ended(self, sample: RolloutSample) -> int:
        """Take a sample that has ended; returns how many of its group are left."""
        self._ended.setdefault(sample.episode.uid, []).append(sample)
        return self._one_less(sample.episode.uid)

    def dropped(self, episode: EpisodeId) -> int:
        """Go on without a member; returns how many of its group are left."""
        return self._one_less(episode.uid)

    def left(self) -> Iterable[tuple[str, int]]:
        """Open groups and how many of each have not ended."""
        return self._left.items()

    def take(self) -> list[Group]:
        """Take all complete groups."""
        groups = list(self._complete)
        self._complete.clear()
        return groups

    def take_one(self) -> Group | None:
        """Take the group that has been complete for longest."""
        return self._complete.popleft() if self._complete else None

    def _one_less(self, uid: str) -> int:
        self._left[uid] -= 1
        left = self._left[uid]
        if not left:
            del self._left[uid]
            samples = self._ended.pop(uid, [])
            if samples:
                members = sorted(samples, key=lambda s: s.episode.replica_index)
                self._complete.append(tuple(members))
        return left
