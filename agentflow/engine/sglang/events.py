"""EventBuffer and `values`: bytes of a text/event-stream to the JSON values of its complete events.

Pure. Work is linear in the bytes, however they are cut, and all events of one read are parsed in
one go: parsing them one by one takes twice as long.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DATA = b"data: "
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


def values(block: bytes) -> Iterable[Any]:
    """Return the JSON value of every event in `block`, the closing [DONE] left out.

    Raises orjson.JSONDecodeError at the event that is none, after those before it. JSON has no line
    end inside, so what stands between two plain events can be replaced by a comma.
    """
    block = block.removesuffix(_LAST)
    if block.startswith(_DATA):
        try:
            found: list[Any] = orjson.loads(b"[%b]" % block[6:-2].replace(_BETWEEN, b","))
        except orjson.JSONDecodeError:
            return _one_by_one(block)
        return found
    return _one_by_one(block)


def newest(block: bytes) -> bytes:
    """Return the last event of `block` that is not [DONE]; for servers that repeat themselves."""
    block = block.removesuffix(_LAST)
    start = block.rfind(_BETWEEN)
    return block if start < 0 else block[start + 2 :]


def _one_by_one(block: bytes) -> Iterator[Any]:
    """Read events as the standard says: comments and other fields out, several lines joined."""
    for event in block.split(b"\n\n"):
        lines = [line for line in event.splitlines() if line.startswith(b"data:")]
        payload = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
        if payload and payload != _DONE:
            yield orjson.loads(payload)
