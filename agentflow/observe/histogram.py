"""Histogram: how many values fell under each of some bounds, and their sum. Pure."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import Final

SECONDS: Final = (0.001, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""From a scheduler's tick to a judge that is in trouble."""

VERSIONS: Final = (0.0, 1.0, 2.0, 4.0, 8.0, 16.0)


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("_counts", "bounds", "count", "sum")

    def __init__(self, bounds: tuple[float, ...] = SECONDS) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.count = 0
        self.sum = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.count += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, int]]:
        """Give Prometheus's buckets: how many values are at most each bound, `+Inf` last."""
        names = [*(f"{bound:g}" for bound in self.bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))
