"""EventBuffer and `values`: bytes of a text/event-stream to the JSON values of its complete events.

Pure. Work is linear in the bytes, however they are cut. Events are parsed one at a time, so that
the parser works on the same few cached kilobytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLAIN = b"data: {"
_DONE = b"[DONE]"
_BETWEEN = b"\n\ndata: "
_LAST = b"data: [DONE]\n\n"


class EventBuffer:
    """Feed bytes, get complete events; an unfinished one waits for its rest."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> bytes:
        """Return the events that `data` completes, as they came; empty when there is none."""
        if not self._buffer and data.endswith(b"\n\n"):
            return data
        searched = max(0, len(self._buffer) - 1)
        self._buffer += data
        end = self._buffer.rfind(b"\n\n", searched) + 2
        if end < 2:  # noqa: PLR2004  # not found
            return b""
        complete = bytes(self._buffer[:end])
        del self._buffer[:end]
        return complete

    @property
    def pending(self) -> int:
        """Bytes of an event that was begun and not completed."""
        return len(self._buffer)


def values(block: bytes) -> Iterator[Any]:
    """Yield the JSON value of every event in `block`, the closing [DONE] left out.

    Raises orjson.JSONDecodeError at the event that is none, after those before it.
    """
    for event in block.split(b"\n\n"):
        if event.startswith(_PLAIN) and b"\n" not in event:
            yield orjson.loads(event[6:])
        elif event:
            yield from _any_value(event)


def newest(block: bytes) -> bytes:
    """Return the last event of `block` that is not [DONE]; for servers that repeat themselves."""
    block = block.removesuffix(_LAST)
    start = block.rfind(_BETWEEN)
    return block if start < 0 else block[start + 2 :]


def _any_value(event: bytes) -> Iterator[Any]:
    """Read an event as the standard says: comments and other fields out, several lines joined."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    payload = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
    if payload and payload != _DONE:
        yield orjson.loads(payload)
