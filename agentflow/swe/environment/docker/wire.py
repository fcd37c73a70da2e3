"""The helper's frames as bytes: pure, no I/O. The other end is `helper/slip.c` and `command.c`.

A frame is END, escaped bytes, END, and starts with its own length: a reader that joins in the
middle is in step at the next END, and a frame that was cut off is dropped.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntFlag
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PROTOCOL = 1
END, ESC = b"\xc0", b"\xdb"
ESC_END, ESC_ESC = b"\xdb\xdc", b"\xdb\xdd"

HELLO, RUN, KILL, CLEAR, LAST, SHARE, TTL = b"h", b"r", b"k", b"c", b"l", b"s", b"t"
_HELLO_REPLY, _END_REPLY = ord("H"), ord("E")
_END = struct.Struct("<IiBiQQIII")
_KEEP_BACKGROUND, _BLOB_IS_STDIN, _BLOB_IS_FD3 = 1, 2, 4
MAX_ARGUMENT = 128 * 1024 - 1
"""Linux's MAX_ARG_STRLEN less its NUL: a longer script goes in as a file."""
MAX_FRAME = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command for a session."""

    argv: tuple[str, ...]
    """`argv[0]` is an absolute path inside the container."""
    cwd: str
    timeout_s: float | None
    head_bytes: int
    tail_bytes: int
    env: Mapping[str, str] = field(default_factory=dict)
    """Over the container's own variables."""
    stdin: bytes | None = None
    """None is /dev/null."""
    script: bytes | None = None
    """What the command finds as `/proc/self/fd/3`; not together with `stdin`."""
    keep_background: bool = False


class EndFlag(IntFlag):
    """How a command ended; the values are helper.h's."""

    TIMED_OUT = 1
    KILLED = 2
    BACKGROUND = 4
    START_FAILED = 8
    SURVIVOR = 16
    OOM_UNKNOWN = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The helper's answer to a caller that connects."""

    protocol: int
    running: int
    """Id of the command that runs now, 0 for none."""
    last: int
    """Id of the command that ended last, 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The end of a command."""

    id: int
    wait_status: int
    """As `waitpid` gives it."""
    flags: EndFlag
    error: int
    """errno of a failed start."""
    total_bytes: int
    """Output before anything was left out."""
    duration_s: float
    kill_s: float
    """From the end of the first process, or the deadline, to the end of the last one."""
    oom_kills: int
    """Processes that the kernel killed for memory while it ran."""
    output: bytes
    """Head and tail."""

    @property
    def exit_code(self) -> int:
        """The shell's number: 128 + n for signal n."""
        signal = self.wait_status & 0x7F
        return 128 + signal if signal else self.wait_status >> 8 & 0xFF


def frame(payload: bytes) -> bytes:
    """Wrap a payload, its type byte first."""
    data = struct.pack("<I", len(payload)) + payload
    return END + data.replace(ESC, ESC_ESC).replace(END, ESC_END) + END


def run_request(number: int, command: Command) -> bytes:
    """Encode a command. Raises ValueError for a NUL byte where a string must stand."""
    flags = _KEEP_BACKGROUND if command.keep_background else 0
    blob = b""
    if command.stdin is not None:
        flags, blob = flags | _BLOB_IS_STDIN, command.stdin
    elif command.script is not None:
        flags, blob = flags | _BLOB_IS_FD3, command.script
    env = [f"{name}={value}" for name, value in command.env.items()]
    strings = [_encode(text) for text in (command.cwd, *command.argv, *env)]
    timeout_ms = max(1, round(command.timeout_s * 1000)) if command.timeout_s is not None else 0
    numbers = struct.pack(
        "<8I",
        number,
        min(timeout_ms, 0xFFFFFFFF),
        command.head_bytes,
        command.tail_bytes,
        flags,
        len(command.argv),
        len(env),
        len(blob),
    )
    payload = b"".join([RUN, numbers, *(text + b"\0" for text in strings), blob])
    if len(payload) > MAX_FRAME:
        raise ValueError(f"a command of {len(payload)} bytes: at most {MAX_FRAME}")
    return frame(payload)


def _encode(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    if b"\0" in data:
        raise ValueError(f"{text[:80]!r} holds a NUL byte, which no argument or variable may")
    return data


def ttl_request(seconds: int) -> bytes:
    """Ask the helper to leave after so many seconds of silence."""
    return frame(TTL + struct.pack("<I", seconds))


class FrameReader:
    """Cuts frames out of a stream. Bytes that are no frame are dropped."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the payloads that `data` completes."""
        *whole, rest = data.split(END)
        for part in whole:
            self._rest.append(part)
            encoded = b"".join(self._rest)
            self._rest.clear()
            payload = encoded.replace(ESC_END, END).replace(ESC_ESC, ESC)
            size = len(payload) - 4
            if size > 0 and struct.unpack_from("<I", payload)[0] == size:
                yield payload[4:]
        if rest:
            self._rest.append(rest)


def parse(payload: bytes) -> Hello | Ended | None:
    """Decode a reply; None for a type that this version does not know."""
    match payload[0]:
        case kind if kind == _HELLO_REPLY:
            protocol, running, last = struct.unpack_from("<III", payload, 1)
            return Hello(protocol=protocol, running=running, last=last)
        case kind if kind == _END_REPLY:
            return _parse_end(payload)
    return None


def _parse_end(payload: bytes) -> Ended:
    number, status, flags, error, total, duration, kill, oom, _head = _END.unpack_from(payload, 1)
    return Ended(
        id=number,
        wait_status=status,
        flags=EndFlag(flags),
        error=error,
        total_bytes=total,
        duration_s=duration / 1e6,
        kill_s=kill / 1e6,
        oom_kills=oom,
        output=payload[1 + _END.size :],
    )
