"""RankQueue: a waiting line by class and rank with removal, where nobody waits for ever."""

from __future__ import annotations

import heapq
import itertools
from math import inf
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
    """Whoever has aged, the oldest first; then high before low, lowest rank, first come.

    Leaving is lazy: an entry whose ticket nobody has is void, and dropped when it surfaces. Entries
    hold no items, so that the garbage collector need not look at them.
    """

    __slots__ = ("_age_s", "_by_age", "_by_rank", "_members", "_tickets")

    def __init__(self, age_s: float = inf) -> None:
        """Let whoever has waited for `age_s` seconds go before its betters."""
        self._age_s = age_s
        self._tickets = itertools.count(1)
        self._members: dict[int, T] = {}
        self._by_rank: list[tuple[bool, float, int]] = []
        self._by_age: list[tuple[bool, float, int]] = []

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[T]:
        """All members, in the order in which they go while nobody has aged."""
        members = self._members
        return (members[ticket] for *_, ticket in sorted(self._by_rank) if ticket in members)

    def add(self, item: T, *, first: bool = False) -> None:
        """Enter with the item's present class and rank; `first` among its equals, else last."""
        ticket = next(self._tickets)
        item.ticket = ticket = -ticket if first else ticket
        self._members[ticket] = item
        heapq.heappush(self._by_rank, (not item.high, item.rank, ticket))
        if self._age_s < inf:
            heapq.heappush(self._by_age, (False, item.queued_at, ticket))

    def discard(self, item: T) -> None:
        """Leave the line; the item must be in it."""
        del self._members[item.ticket]

    def requeue(self, item: T) -> None:
        """Enter anew with the item's present class and rank; it must be in the line."""
        self.discard(item)
        self.add(item, first=item.ticket < 0)

    def first(self, now: float = -inf) -> T | None:
        """The member that goes next at `now`, in seconds of `queued_at`, or None.

        Without `now` nobody has aged.
        """
        oldest = self._top(self._by_age) if self._by_age else None
        if oldest is not None and oldest.queued_at <= now - self._age_s:
            return oldest
        return self._top(self._by_rank)

    def _top(self, heap: list[tuple[bool, float, int]]) -> T | None:
        while heap:
            member = self._members.get(heap[0][2])
            if member is not None:
                return member
            heapq.heappop(heap)
        return None
