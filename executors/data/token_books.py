"""TokenBooks: what became of every generated token that a coordinator's samples stand for.

    received = live + buffered + delivered + failed + restarted + forked
               + stale + surplus + deadline + lost

`received` is counted at the engine's door (`MeteredModel`), everything else follows from how the
samples ended; what does not add up is a bug. Called under the coordinator's lock; knows no clock
and no file.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agentflow.types import Blame, Cause
from executors.data.observers import BookObserver

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Ending, RolloutSample
    from executors.data.groups import Group

_COLUMN = {Cause.STALE: "stale", Cause.SURPLUS: "surplus", Cause.DEADLINE: "deadline"}
COLUMNS = ("buffered", "delivered", "failed", "restarted", "forked", *_COLUMN.values(), "lost")


class TokenBooks(BookObserver):
    """Counts tokens by what became of them."""

    def __init__(self, received: Counter[str]) -> None:
        """`received` is the meter's, by `EpisodeId.key`; what is settled is taken out of it."""
        self._received = received
        self._dropped: dict[str, str] = {}
        """Columns by key; their requests may still bring something."""
        self._buffered: dict[str, Counter[str]] = {}
        self._lost = set[str]()
        """Keys whose worker was given up: more may have been received than their samples tell."""
        self._late = set[str]()
        """The same of samples that the trainer has; what still comes is for nothing."""
        self._settled = Counter[str]()
        self._settled_received = 0

    def issued(self, samples: Sequence[RolloutSample]) -> None:
        """A name that was delivered may be given again."""
        for key in self._late.intersection(sample.episode.key for sample in samples):
            self._late.remove(key)
            self._settled["lost"] += self._settle(key)

    def lost(self, sample: RolloutSample) -> None:
        """What its worker received, or still will, is in no sample that comes."""
        self._lost.add(sample.episode.key)

    def ended(self, sample: RolloutSample) -> None:
        """A sample waits for its group."""
        self._buffered[sample.episode.key] = _columns(sample)

    def restored(self, sample: RolloutSample) -> None:
        """A sample waits for its group that ended in an earlier process, with another meter."""
        self.ended(sample)
        self._received[sample.episode.key] += self._buffered[sample.episode.key].total()

    def dropped(self, sample: RolloutSample, ending: Ending) -> None:
        """All that was received for it was for nothing."""
        key = sample.episode.key
        self._buffered.pop(key, None)
        self._lost.discard(key)
        self._dropped[key] = _COLUMN.get(ending.cause, "failed")

    def delivered(self, group: Group) -> None:
        """The trainer has it."""
        for sample in group:
            key = sample.episode.key
            columns = self._buffered.pop(key, None)
            if columns is None:
                continue
            self._settled.update(columns)
            rest = self._settle(key) - columns.total()
            if key in self._lost:
                self._lost.remove(key)
                self._late.add(key)
                self._settled["lost"] += rest

    def _settle(self, key: str) -> int:
        """Take a name's tokens out of those that are open; returns how many they are."""
        received = self._received.pop(key, 0)
        self._settled_received += received
        return received

    def figures(self) -> dict[str, int]:
        """Every column; they add up to `received`."""
        open_tokens = dict(self._received)
        columns = Counter(dict.fromkeys(COLUMNS, 0))
        columns.update(self._settled)
        received = self._settled_received + sum(open_tokens.values())
        for key, column in self._dropped.items():
            columns[column] += open_tokens.pop(key, 0)
        for key in self._late:
            columns["lost"] += open_tokens.pop(key, 0)
        for key, told in self._buffered.items():
            columns["buffered"] += told.total()
            rest = open_tokens.pop(key, 0) - told.total()
            columns["lost"] += rest * (key in self._lost)
        return {"received": received, "live": sum(open_tokens.values()), **columns}


def _columns(sample: RolloutSample) -> Counter[str]:
    assert sample.ending is not None
    failed = sample.ending.cause.blame is Blame.INFRASTRUCTURE
    return Counter(
        {
            "failed" if failed else "delivered": sample.facts.generated_tokens,
            "restarted": sample.restarted_tokens - sample.stale_tokens,
            "stale": sample.stale_tokens,
            "forked": sample.facts.forked_tokens,
        }
    )
