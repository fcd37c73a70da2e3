"""KeptOutput: the head and the tail of a stream of any length, in bounded memory."""

from __future__ import annotations


class KeptOutput:
    """Keeps the first `head` and the last `tail` bytes, and counts the rest."""

    def __init__(self, *, head: int, tail: int) -> None:
        self._head_room, self._tail_room = head, tail
        self._head, self._tail = bytearray(), bytearray()
        self.total = 0
        """Bytes seen."""

    def add(self, data: bytes) -> None:
        """Take what came."""
        self.total += len(data)
        first = self._head_room - len(self._head)
        self._head += data[:first]
        self._tail += data[first:]
        if len(self._tail) > 2 * self._tail_room + len(data):  # seldom, so that it costs little
            self._trim()

    def _trim(self) -> None:
        del self._tail[: len(self._tail) - self._tail_room]

    def value(self) -> bytes:
        """Head and tail; all of it when nothing was left out."""
        if len(self._tail) > self._tail_room:
            self._trim()
        return bytes(self._head + self._tail)
