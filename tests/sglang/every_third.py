"""A policy of a user's own, by its file: every third episode is high."""

from __future__ import annotations

from typing import TYPE_CHECKING

from priority.policies import Priority

if TYPE_CHECKING:
    from priority.policies import Standing


class EveryThird:
    """High ones come back from their commands to slots that low ones took: they preempt those."""

    def __init__(self, *, preempts: bool) -> None:
        self.preempts = preempts

    def classify(self, standing: Standing) -> Priority:
        """Go by the order of arrival."""
        return Priority(high=standing.order % 3 == 0)
