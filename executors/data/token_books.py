"""TokenBooks: what became of every generated token that a coordinator's samples stand for.

    received = live + buffered + delivered + failed + restarted + forked
               + stale + surplus + deadline

`received` is counted at the engine's door (`MeteredModel`), everything else follows from how the
samples ended. Called under the coordinator's lock; knows no clock and no file.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from agentflow.types import Blame, Cause
from executors.data.observers import BookObserver

if TYPE_CHECKING:
    from agentflow.types import Ending, RolloutSample
    from executors.data.groups import Group

_COLUMN = {Cause.STALE: "stale", Cause.SURPLUS: "surplus", Cause.DEADLINE: "deadline"}
COLUMNS = ("buffered", "delivered", "failed", "restarted", "forked", *_COLUMN.values())


class TokenBooks(BookObserver):
    """Counts tokens by what became of them."""

    def __init__(self, received: Counter[str]) -> None:
        """`received` is the meter's, by `EpisodeId.key`; what is settled is taken out of it."""
        self._received = received
        self._dropped: dict[str, str] = {}
        """Columns by key; their requests may still bring something."""
        self._buffered: dict[str, Counter[str]] = {}
        self._settled = Counter[str]()

    def ended(self, sample: RolloutSample) -> None:
        """A sample waits for its group."""
        self._buffered[sample.episode.key] = _columns(sample)

    def dropped(self, sample: RolloutSample, ending: Ending) -> None:
        """All that was received for it was for nothing."""
        key = sample.episode.key
        self._buffered.pop(key, None)
        self._dropped[key] = _COLUMN.get(ending.cause, "failed")

    def delivered(self, group: Group) -> None:
        """The trainer has it."""
        for sample in group:
            columns = self._buffered.pop(sample.episode.key, None)
            if columns is not None:
                self._received.pop(sample.episode.key, None)
                self._settled += columns

    def figures(self) -> dict[str, int]:
        """Every column; they add up to `received`."""
        open_tokens = dict(self._received)
        columns = Counter(dict.fromkeys(COLUMNS, 0))
        columns.update(self._settled)
        for key, column in self._dropped.items():
            columns[column] += open_tokens.pop(key, 0)
        for key, told in self._buffered.items():
            open_tokens.pop(key, None)
            columns["buffered"] += told.total()
        live = sum(open_tokens.values())
        return {"received": live + columns.total(), "live": live, **columns}


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
