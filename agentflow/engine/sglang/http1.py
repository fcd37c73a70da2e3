"""Connection and Pool: HTTP/1.1 for token streams, handed over in callbacks.

Owns sockets and keep-alive; httptools (llhttp) does the framing; knows nothing of tokens. It exists
because general clients do Python work for every chunk of a body, and SGLang sends every event as
one: here all chunks of a read go to the receiver at once, each still by itself, which saves looking
for the events' ends, and the waiting task wakes up once, at the end. Over aiohttp the token path
alone needs more CPU than the whole client (`over_aiohttp` in the benchmark `engine_client`), too
much for one of its goals: a third of what aiohttp with the standard library's JSON costs.
Invariant: a connection serves one exchange at a time and is reused only after a complete body with
nothing behind it.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, cast

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

if TYPE_CHECKING:
    import ssl

IDLE_S = 3.0
"""Below uvicorn's keep-alive of 5 s, so that the server never closes what we are about to use."""

_MAX_FRAMING = 64 * 1024
"""Bytes without one of a body among them: headers, chunk extensions, trailers."""
_READ = 64 * 1024
"""A plain asyncio protocol would allocate 256 KiB for every read, mostly to give them back."""
_FINAL = 200
"""Statuses below are interim: the answer is still to come."""


class Receiver(Protocol):
    """Takes one answer. After `on_end` or `on_lost` nothing more comes."""

    def on_status(self, status: int) -> None:
        """Take the status; the body follows."""

    def on_body(self, pieces: list[bytes]) -> None:
        """Take the next bytes of the body, cut as chunks and reads were; only until it returns."""

    def on_end(self) -> None:
        """Take notice that the body is complete."""

    def on_lost(self, reason: Exception | None) -> None:
        """Take notice that the connection broke before the body was complete."""


class BadHttp(ConnectionError):
    """The peer does not speak HTTP/1.1."""


class PoolClosed(ConnectionError):
    """Whoever owns the pool has closed it."""


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
        self._pieces: list[bytes] = []
        self._status = self._told = 0
        self.on_body = self._pieces.append  # what the parser calls, so without a Python frame
        self._start_over()
        self.idle_since = 0.0

    def send(self, request: list[bytes], receiver: Receiver) -> None:
        """Start an exchange."""
        transport = self._transport
        if transport is None or self._receiver is not None:
            raise RuntimeError("the connection is not idle")
        self._receiver = receiver
        self._start_over()
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
        self._transport = cast("asyncio.Transport", transport)  # a stream protocol's

    def connection_lost(self, exc: Exception | None) -> None:
        """End what was going on."""
        self._transport = None
        receiver, self._receiver = self._receiver, None
        self._pool.forget(self)
        if receiver is not None:
            receiver.on_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002  # the protocol's signature
        """Return where to read into: one buffer for all, because it is emptied at once."""
        return self._pool.buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Take what was read."""
        self.received(self._pool.buffer[:nbytes])

    def received(self, data: bytes | memoryview) -> None:
        """Parse and hand on."""
        receiver = self._receiver
        if receiver is None:
            self.drop()  # nobody asked for this
            return
        problem = self._parse(data)
        if self._told != self._status:
            self._told = self._status
            receiver.on_status(self._status)
        if self._pieces:
            receiver.on_body(self._pieces)
            self._pieces.clear()
        if self._complete:
            self._receiver = None
            receiver.on_end()
            self._pool.take_back(self, reusable=self._keep and problem is None)
        elif problem is not None:
            self._receiver = None
            self.drop()
            receiver.on_lost(problem)

    # --- httptools' callbacks -----------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Stop at a second answer: only one was asked for."""
        if self._complete:
            raise BadHttp("bytes behind the answer")

    def on_headers_complete(self) -> None:
        """Take the status, unless it is an interim one."""
        status = self._parser.get_status_code()
        if status >= _FINAL:
            self._status = status

    def on_message_complete(self) -> None:
        """Take the end of the answer."""
        if self._status:
            self._complete = True
            self._keep = self._parser.should_keep_alive()

    # --- inside -------------------------------------------------------------------------------

    def _start_over(self) -> None:
        self._parser = HttpResponseParser(self)
        self._pieces.clear()
        self._status = self._told = 0
        self._complete = self._keep = False
        self._framing = 0

    def _parse(self, data: bytes | memoryview) -> BadHttp | None:
        """Feed the parser; return what is wrong with the answer."""
        try:
            self._parser.feed_data(data)
        except (HttpParserError, HttpParserUpgrade) as error:
            return BadHttp(f"no HTTP/1.1 answer: {error}")
        self._framing = 0 if self._pieces else self._framing + len(data)
        if self._framing > _MAX_FRAMING:
            return BadHttp(f"{self._framing} bytes of header or framing")
        return None


class Pool:
    """The connections to one server; opens as many as are asked for, keeps the idle ones."""

    def __init__(self, address: Address, *, connect_s: float) -> None:
        self._address = address
        self._connect_s = connect_s
        self.buffer = memoryview(bytearray(_READ))
        """Where every connection reads into."""
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._all_lost = asyncio.Event()
        self._closed = False

    async def acquire(self) -> Connection:
        """Return an idle or new connection. Raises OSError (PoolClosed is one) or TimeoutError."""
        if self._closed:
            raise PoolClosed
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
        self._admit(connection)
        return connection

    def _admit(self, connection: Connection) -> None:
        """Count a new connection. Raises PoolClosed: one that was closed meanwhile has none."""
        self._open.add(connection)
        if self._closed:
            connection.drop()
            raise PoolClosed

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
        if not self._open:
            self._all_lost.set()

    async def close(self) -> None:
        """Drop every connection and wait until the sockets are closed. Idempotent."""
        self._closed = True
        for connection in list(self._open):
            connection.drop()
        if self._open:
            self._all_lost.clear()
            await self._all_lost.wait()

    def gauges(self) -> dict[str, int]:
        """Open and idle sockets."""
        return {"connections_open": len(self._open), "connections_idle": len(self._idle)}
