"""RankQueue: a waiting line by rank with removal; the oldest member is known as well."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentflow.scheduling.items import WorkItem


class RankQueue:
    """Lowest rank first, ties by entry. Leaving is lazy: an entry whose ticket is old is void."""

    __slots__ = ("_ages", "_by_age", "_by_rank", "_members", "_tickets")

    def __init__(self, tickets: Iterator[int], *, ages: bool = True) -> None:
        """`tickets` counts up, shared by all queues that an item may be in.

        Without `ages` nobody may ask for the oldest, and nothing is kept for it.
        """
        self._ages = ages
        self._tickets = tickets
        self._by_rank: list[tuple[float, int, WorkItem]] = []
        self._by_age: list[tuple[float, int, WorkItem]] = []
        self._members: set[WorkItem] = set()

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[WorkItem]:
        return iter(self._members)

    def __contains__(self, item: object) -> bool:
        return item in self._members

    def add(self, item: WorkItem, *, first: bool = False) -> None:
        """Enter with the item's present rank; `first` among its equals, otherwise last."""
        ticket = next(self._tickets)
        item.ticket = -ticket if first else ticket
        self._members.add(item)
        heapq.heappush(self._by_rank, (item.rank, item.ticket, item))
        if self._ages:
            heapq.heappush(self._by_age, (item.queued_at, item.ticket, item))

    def remove(self, item: WorkItem) -> None:
        """Leave the line."""
        self._members.remove(item)
        item.ticket = 0

    def first(self) -> WorkItem | None:
        """The member with the lowest rank, or None."""
        return _top(self._by_rank)

    def in_order(self) -> list[WorkItem]:
        """All members, the first one first; for those who look on."""
        return sorted(self._members, key=lambda item: (item.rank, item.ticket))

    def oldest(self) -> WorkItem | None:
        """The member that has waited longest, or None."""
        return _top(self._by_age)


def _top(heap: list[tuple[float, int, WorkItem]]) -> WorkItem | None:
    while heap and heap[0][1] != heap[0][2].ticket:
        heapq.heappop(heap)
    return heap[0][2] if heap else None
