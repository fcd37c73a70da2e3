"""OrderedSet: a set that remembers insertion order and knows its newest member in O(1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator

T = TypeVar("T", bound="Hashable")


class OrderedSet(Generic[T]):
    """Insertion-ordered set; `newest` is the low-priority generation that loses the least.

    Stands on the insertion order of dicts: add, discard, membership and newest are O(1).
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterable[T] = ()) -> None:
        self._items: dict[T, None] = dict.fromkeys(items)

    def add(self, item: T) -> None:
        """Add at the newest end; an item that is present keeps its place."""
        self._items[item] = None

    def discard(self, item: T) -> None:
        """Remove, if present."""
        self._items.pop(item, None)

    def newest(self) -> T | None:
        """The item added last, or None."""
        return next(reversed(self._items), None)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def __contains__(self, item: object) -> bool:
        return item in self._items

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return f"OrderedSet({list(self._items)!r})"
