"""StopStrings: whether a turn that was interrupted has met, or is about to meet, a stop string.

An engine looks for stop strings in what one request generates. Where a turn goes on in a second
request, one that began before the seam would be missed, and one that was completed by the last
token before an abort would be generated past.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_INCOMPLETE = "\ufffd"
"""What decoding shows of a character whose last bytes are still to come."""


class StopStrings:
    """The stop strings of a turn."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._multibyte = any(not stop.isascii() for stop in self._stops)

    def __bool__(self) -> bool:
        return bool(self._stops)

    def met(self, text: str) -> str | None:
        """Return the stop string that `text` holds, the one completed first; None without one."""
        ends = [(text.find(stop) + len(stop), stop) for stop in self._stops if stop in text]
        return min(ends)[1] if ends else None

    def begun(self, text: str) -> bool:
        """Whether `text` ends in what may be the beginning of a stop string."""
        if self._multibyte and text.endswith(_INCOMPLETE):
            return True
        return any(
            text.endswith(stop[:length]) for stop in self._stops for length in range(1, len(stop))
        )
