"""RankQueue: a waiting line by class and rank with removal; the oldest member is known as well."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator


class Ranked(Protocol):
    """What can stand in a line."""

    high: bool
    """High goes before low."""
    rank: float
    """Lower goes first within its class."""
    queued_at: float
    """When it began to wait."""
    ticket: int
    """Its entry in the line it is in; only the line changes it."""


T = TypeVar("T", bound=Ranked)


class RankQueue(Generic[T]):
    """High before low, then lowest rank, then first come.

    Leaving is lazy: an entry whose ticket is not its item's is void, and dropped when it surfaces.
    """

    __slots__ = ("_ages", "_by_age", "_by_rank", "_len", "_tickets")

    def __init__(self, tickets: Iterator[int], *, ages: bool = True) -> None:
        """`tickets` counts up, shared by all lines that an item may be in.

        Without `ages` nobody may ask for the oldest, and nothing is kept for it.
        """
        self._ages = ages
        self._tickets = tickets
        self._by_rank: list[tuple[bool, float, int, T]] = []
        self._by_age: list[tuple[bool, float, int, T]] = []
        self._len = 0

    def __len__(self) -> int:
        return self._len

    def __iter__(self) -> Iterator[T]:
        """All members, in the order in which they go."""
        return (item for *_, ticket, item in sorted(self._by_rank) if ticket == item.ticket)

    def add(self, item: T, *, first: bool = False) -> None:
        """Enter with the item's present class and rank; `first` among its equals, else last."""
        ticket = next(self._tickets)
        item.ticket = ticket = -ticket if first else ticket
        self._len += 1
        heapq.heappush(self._by_rank, (not item.high, item.rank, ticket, item))
        if self._ages:
            heapq.heappush(self._by_age, (False, item.queued_at, ticket, item))

    def discard(self, item: T) -> None:
        """Leave the line; the item must be in it."""
        item.ticket = 0
        self._len -= 1

    def first(self) -> T | None:
        """The member that goes next, or None."""
        return _top(self._by_rank)

    def oldest(self) -> T | None:
        """The member that has waited longest, or None."""
        return _top(self._by_age)


def _top(heap: list[tuple[bool, float, int, T]]) -> T | None:
    while heap:
        _, _, ticket, item = heap[0]
        if ticket == item.ticket:
            return item
        heapq.heappop(heap)
    return None
