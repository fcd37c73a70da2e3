"""Pager: a sequence cut into pages of one size."""

from dataclasses import dataclass


class PageNotFound(LookupError):
    """There is no page of that number."""


@dataclass(frozen=True)
class Page:
    """One page; `number` counts from 1."""

    number: int
    entries: list
    has_next: bool


class Pager:
    """Cuts `entries` into pages of `per_page`."""

    def __init__(self, entries, per_page=10):
        if per_page < 1:
            raise ValueError("per_page must be at least 1")
        self._entries = list(entries)
        self.per_page = per_page

    @property
    def pages(self):
        """How many pages there are; no entries make one empty page."""
        full, rest = divmod(len(self._entries) - 1, self.per_page)
        return max(full + bool(rest), 1)

    def page(self, number):
        """Return page `number`, or raise PageNotFound."""
        if not 1 <= number <= self.pages:
            raise PageNotFound(f"page {number} of {self.pages}")
        start = (number - 1) * self.per_page
        entries = self._entries[start : start + self.per_page]
        return Page(number, entries, has_next=number < self.pages)
