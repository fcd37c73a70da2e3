"""EventBuffer and `events_of`: bytes of a text/event-stream to the typed events of /generate.

Pure. Work is linear in the bytes, however they are cut. Only what we read is decoded: a general
JSON parser spends most of its time on making objects of the twenty fields that nobody looks at.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class LogProb(msgspec.Struct, array_like=True, gc=False):
    """`[logprob, id, text]`; the text is left out."""

    logprob: float
    id: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class VersionRange(msgspec.Struct, gc=False):
    """Tokens `[start, end)` of one weight version."""

    version: str
    start: int
    end: int


class Meta(msgspec.Struct, gc=False):
    """`meta_info`, as far as it is read."""

    weight_version: str
    completion_tokens: int
    output_token_logprobs: list[LogProb] = []
    finish_reason: dict[str, Any] | None = None
    weight_versions: list[VersionRange] | None = None
    cached_tokens: int | None = None
    num_retractions: int | None = None


class TokenEvent(msgspec.Struct, gc=False):
    """New tokens, all tokens, or the end."""

    output_ids: list[int]
    meta_info: Meta


class ErrorEvent(msgspec.Struct):
    """What comes instead of tokens when a request was refused."""

    error: Any


class PlainError(msgspec.Struct, tag_field="object", tag="error"):
    """An error in the other of SGLang's shapes."""

    message: str
    code: int | None = None


Event = TokenEvent | ErrorEvent

_SHOWN = 120
_PLAIN = b"data: {"
_DONE = b"[DONE]"
_END = b"\n\n"
_BETWEEN = b"\n\ndata: "
_LAST = b"data: [DONE]\n\n"
_decode_error = msgspec.json.Decoder(ErrorEvent).decode
_decode_plain_error = msgspec.json.Decoder(PlainError).decode
_tokens = msgspec.json.Decoder(TokenEvent)
_decode_tokens = _tokens.decode


class EventBuffer:
    """Feed bytes, get complete events; an unfinished one waits for its rest."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, pieces: list[bytes]) -> list[bytes]:
        """Return the events that `pieces` complete, cut as they came; empty when there is none."""
        if not self._buffer and pieces[-1].endswith(_END):
            return pieces
        complete = []
        for piece in pieces:
            if not self._buffer and piece.endswith(_END):
                complete.append(piece)
                continue
            searched = max(0, len(self._buffer) - 1)
            self._buffer += piece
            end = self._buffer.rfind(_END, searched) + len(_END)
            if end >= len(_END):  # found
                complete.append(bytes(self._buffer[:end]))
                del self._buffer[:end]
        return complete

    @property
    def pending(self) -> int:
        """Bytes of an event that was begun and not completed."""
        return len(self._buffer)

    @property
    def beginning(self) -> bytes:
        """The first of those bytes."""
        return bytes(self._buffer[:_SHOWN])


def token_events(pieces: list[bytes]) -> list[TokenEvent] | None:
    """Read events as SGLang sends them, each a piece of its own; None where one is otherwise."""
    if pieces[-1] == _LAST:
        pieces = pieces[:-1]
    try:
        return [_decode_tokens(piece.removeprefix(b"data:")) for piece in pieces]
    except msgspec.DecodeError:
        return None


def events_of(block: bytes) -> Iterable[Event]:
    """Return the events in `block`, the closing [DONE] left out.

    Raises msgspec.DecodeError at what is none, after those before it.
    """
    if block.startswith(_PLAIN):
        lines = block.removesuffix(_LAST)[6:-2].replace(_BETWEEN, b"\n")
        try:
            return _tokens.decode_lines(lines)
        except msgspec.DecodeError:
            pass  # one of them is unusual, or wrong: one by one tells which
    return _one_by_one(block)


def newest(block: bytes) -> bytes:
    """Return the last event of `block` that is not [DONE]; for servers that repeat themselves."""
    block = block.removesuffix(_LAST)
    start = block.rfind(_BETWEEN)
    return block if start < 0 else block[start + 2 :]


def _one_by_one(block: bytes) -> Iterator[Event]:
    """Read events as the standard says: comments and other fields out, several lines joined."""
    for event in block.split(b"\n\n"):
        lines = [line for line in event.splitlines() if line.startswith(b"data:")]
        payload = b"\n".join(line[5:].removeprefix(b" ") for line in lines)
        if payload and payload != _DONE:
            yield _event(payload)


def _event(payload: bytes) -> Event:
    try:
        return _decode_tokens(payload)
    except msgspec.DecodeError as error:
        return _error_event(payload, error)


def _error_event(payload: bytes, reason: msgspec.DecodeError) -> ErrorEvent:
    """Read an error in one shape or the other. Raises `reason` where it is neither."""
    with suppress(msgspec.DecodeError):
        return _decode_error(payload)
    with suppress(msgspec.DecodeError):
        plain = _decode_plain_error(payload)
        return ErrorEvent(error={"message": plain.message, "code": plain.code})
    raise reason
