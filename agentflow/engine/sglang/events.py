"""EventSplitter: bytes of a text/event-stream to the payloads of its complete events.

Pure. Work is linear in the bytes, however they are cut.
"""

from __future__ import annotations

_DATA = b"data: "


class EventSplitter:
    """Feed bytes, get payloads; an unfinished event waits for its rest."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the payload of every event that `data` completes."""
        if not self._buffer and data.endswith(b"\n\n"):
            return _payloads(data)
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        end = self._buffer.rfind(b"\n\n", searched)
        if end < 0:
            return []
        complete = bytes(self._buffer[:end])
        del self._buffer[: end + 2]
        return _payloads(complete)

    @property
    def pending(self) -> int:
        """Bytes of an event that was begun and not completed."""
        return len(self._buffer)


def _payloads(block: bytes) -> list[bytes]:
    events = block.split(b"\n\n")
    return [
        event[6:] if event.startswith(_DATA) and b"\n" not in event else _slow_payload(event)
        for event in events
        if event and not event.isspace() and not event.startswith(b":")
    ]


def _slow_payload(event: bytes) -> bytes:
    """Read an event of several lines as the standard says: other fields out, data joined."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(line[5:].removeprefix(b" ") for line in lines)
