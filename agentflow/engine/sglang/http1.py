"""Connection and Pool: HTTP/1.1 as far as a token stream needs it, handed over in callbacks.

Owns sockets, keep-alive and the framing of bodies; knows nothing of tokens. It exists because
every stream event of a general client costs a task switch: here bytes go from `data_received`
straight to the receiver, and the waiting task wakes up once, at the end; the benchmark
`engine_client` measures both. Invariant: a connection serves one exchange at a time and is reused
only after a complete body.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import ssl

IDLE_S = 3.0
"""Below uvicorn's keep-alive of 5 s, so that the server never closes what we are about to use."""

_MAX_HEAD = 64 * 1024
_READ = 64 * 1024
"""A plain asyncio protocol would allocate 256 KiB for every read, mostly to give them back."""

_CHUNKED = -1
_UNTIL_CLOSE = -2


class Receiver(Protocol):
    """Takes one answer. After `on_end` or `on_lost` nothing more comes."""

    def on_status(self, status: int) -> None:
        """Take the status; the body follows."""

    def on_body(self, data: bytes) -> None:
        """Take the next bytes of the body."""

    def on_end(self) -> None:
        """Take notice that the body is complete."""

    def on_lost(self, reason: Exception | None) -> None:
        """Take notice that the connection broke before the body was complete."""


class BadHttp(ConnectionError):
    """The peer does not speak HTTP/1.1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where connections go."""

    host: str
    port: int
    path: str = ""
    """Prefix of every path, without a slash at its end."""
    tls: ssl.SSLContext | None = None


class Connection(asyncio.BufferedProtocol):
    """One socket. Between exchanges it lies in its pool."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._head = b""
        self._in_body = False
        self._left = 0
        self._mode = 0
        self._framing = b""
        self._keep = True
        self.idle_since = 0.0

    def send(self, request: list[bytes], receiver: Receiver) -> None:
        """Start an exchange."""
        transport = self._transport
        if transport is None or self._receiver is not None:
            raise RuntimeError("the connection is not idle")
        self._receiver = receiver
        self._in_body = False
        transport.writelines(request)

    def drop(self) -> None:
        """Close at once; a receiver that still waits is told so."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def usable(self) -> bool:
        """Whether a new exchange may start on it."""
        return self._transport is not None and not self._transport.is_closing()

    # --- asyncio.BufferedProtocol -------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)  # for the type checker
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was going on."""
        self._transport = None
        receiver, self._receiver = self._receiver, None
        self._pool.forget(self)
        if receiver is None:
            return
        if exc is None and self._in_body and self._mode == _UNTIL_CLOSE:
            receiver.on_end()
        else:
            receiver.on_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the protocol's signature
        """Return where to read into: one buffer for all, because it is emptied at once."""
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.received(bytes(self._pool.buffer[:nbytes]))

    def received(self, data: bytes) -> None:
        """Parse and hand on."""
        if self._receiver is None:
            self.drop()
            return
        try:
            if not self._in_body:
                data = self._read_head(data)
            if self._in_body:
                self._read_body(data, self._receiver)
        except BadHttp as error:
            receiver, self._receiver = self._receiver, None
            self.drop()
            if receiver is not None:
                receiver.on_lost(error)

    # --- framing ------------------------------------------------------------------------------

    def _read_head(self, data: bytes) -> bytes:
        head = self._head + data
        end = head.find(b"\r\n\r\n")
        if end < 0:
            if len(head) > _MAX_HEAD:
                raise BadHttp(f"no end of the header in {len(head)} bytes")
            self._head = head
            return b""
        self._head = b""
        status = self._parse_head(head[:end])
        rest = head[end + 4 :]
        if 100 <= status < 200:  # noqa: PLR2004  # an interim answer
            return self._read_head(rest) if rest else b""
        self._in_body = True
        assert self._receiver is not None  # checked by the caller
        self._receiver.on_status(status)
        return rest

    def _parse_head(self, head: bytes) -> int:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, rest = first.partition(" ")
        if version not in {"HTTP/1.1", "HTTP/1.0"} or not rest[:3].isdigit():
            raise BadHttp(f"{first[:80]!r} is not the start of an HTTP/1.1 answer")
        fields = {
            name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)
        }
        connection = fields.get("connection", "").lower()
        self._keep = version == "HTTP/1.1" and "close" not in connection
        self._left, self._framing = 0, b""
        if "chunked" in fields.get("transfer-encoding", "").lower():
            self._mode = _CHUNKED
        elif "content-length" in fields:
            self._mode = self._left = _length(fields["content-length"])
        else:
            self._mode = _UNTIL_CLOSE
        return int(rest[:3])

    def _read_body(self, data: bytes, receiver: Receiver) -> None:
        if self._mode == _CHUNKED:
            body, complete = self._unchunk(data)
        elif self._mode == _UNTIL_CLOSE:
            body, complete = data, False
        else:
            body = data[: self._left]
            self._left -= len(body)
            complete = self._left == 0
            self._keep = self._keep and len(body) == len(data)
        if body:
            receiver.on_body(body)
        if complete and self._receiver is receiver:
            self._receiver = None
            receiver.on_end()
            self._pool.take_back(self, reusable=self._keep)

    def _unchunk(self, data: bytes) -> tuple[bytes, bool]:
        """Strip chunk framing; `_left` counts a chunk's bytes to come, its CRLF included."""
        pieces: list[bytes] = []
        if self._framing:
            data, self._framing = self._framing + data, b""
        at, size, left = 0, len(data), self._left
        while at < size:
            if not left:
                end = data.find(b"\r\n", at)
                if end < 0:
                    self._framing = _short(data[at:])
                    break
                left = _chunk_size(data[at:end])
                if not left:
                    return self._last_chunk(pieces, data[at:])
                at, left = end + 2, left + 2
            stop = at + left
            if stop > size:
                pieces.append(data[at : max(at, min(size, stop - 2))])
                left = stop - size
                break
            if left > 2:  # noqa: PLR2004  # more than the chunk's closing CRLF
                pieces.append(data[at : stop - 2])
            at, left = stop, 0
        self._left = left
        return b"".join(pieces), False

    def _last_chunk(self, pieces: list[bytes], rest: bytes) -> tuple[bytes, bool]:
        end = rest.find(b"\r\n\r\n")
        complete = end >= 0
        if complete:
            self._keep = self._keep and end + 4 == len(rest)
        else:
            self._framing = _short(rest)
        return b"".join(pieces), complete


class Pool:
    """The connections to one server; opens as many as are asked for, keeps the idle ones."""

    def __init__(self, address: Address, *, connect_s: float) -> None:
        self._address = address
        self._connect_s = connect_s
        self.buffer = memoryview(bytearray(_READ))
        """Where every connection reads into."""
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._all_lost: asyncio.Future[None] | None = None
        self._closed = False

    async def acquire(self) -> Connection:
        """Return an idle or new connection. Raises OSError or TimeoutError."""
        if self._closed:
            raise ConnectionError("the engine is closed")
        loop = asyncio.get_running_loop()
        oldest_useful = loop.time() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since >= oldest_useful:
                return connection
            connection.drop()
        address = self._address
        async with asyncio.timeout(self._connect_s):
            _, connection = await loop.create_connection(
                lambda: Connection(self),
                address.host,
                address.port,
                ssl=address.tls,
                server_hostname=address.host if address.tls else None,
            )
        self._open.add(connection)
        return connection

    def take_back(self, connection: Connection, *, reusable: bool) -> None:
        """Keep a connection whose exchange is complete."""
        if not (reusable and connection.usable):
            connection.drop()
            return
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def forget(self, connection: Connection) -> None:
        """Take notice that a connection is gone."""
        self._open.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
        if self._all_lost is not None and not self._open and not self._all_lost.done():
            self._all_lost.set_result(None)

    async def close(self) -> None:
        """Drop every connection and wait until the sockets are closed. Idempotent."""
        self._closed = True
        for connection in list(self._open):
            connection.drop()
        if self._open:
            self._all_lost = asyncio.get_running_loop().create_future()
            await self._all_lost

    def gauges(self) -> dict[str, int]:
        """Open and idle sockets."""
        return {"connections_open": len(self._open), "connections_idle": len(self._idle)}


def _length(text: str) -> int:
    if not text.isdigit():
        raise BadHttp(f"content-length {text[:40]!r} is not a number")
    return int(text)


def _chunk_size(line: bytes) -> int:
    try:
        size = int(line.partition(b";")[0] if b";" in line else line, 16)
    except ValueError:
        size = -1
    if size < 0:
        raise BadHttp(f"chunk size {line[:40]!r} is not hexadecimal")
    return size


def _short(framing: bytes) -> bytes:
    if len(framing) > _MAX_HEAD:
        raise BadHttp(f"{len(framing)} bytes of chunk framing")
    return framing
