"""RawStream: the bytes between us and one process in a container, over the engine's own API.

The control plane is the SDK's, which blocks; this is the one connection that must not. It asks the
engine to attach (or to start an exec), which turns the HTTP connection into a raw stream, and takes
the engine's 8-byte headers off. Works over a unix socket, TCP and TCP with TLS.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

from agentflow.swe.environment.docker.errors import StreamLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.swe.environment.docker.address import Address

HEADER = 8
"""Stream number, three zero bytes, size as u32 big-endian."""
STDERR = 2


class RawStream(asyncio.Protocol):
    """One hijacked connection: `write` goes to stdin, stdout comes to `received`.

    `lost` is called once when it ends, whoever ended it.
    """

    def __init__(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        self._received = received
        self._lost = lost
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._closed = asyncio.get_running_loop().create_future()
        self._buffer = b""
        self._left = 0
        self._source = 0

    @classmethod
    async def open(
        cls,
        address: Address,
        path: str,
        *,
        body: object = None,
        received: Callable[[bytes], None],
        lost: Callable[[], None],
    ) -> RawStream:
        """POST to `path` and take the connection over. Raises StreamLost."""
        loop = asyncio.get_running_loop()
        stream = cls(received, lost)
        try:
            if address.unix is not None:
                await loop.create_unix_connection(lambda: stream, address.unix)
            else:
                await loop.create_connection(
                    lambda: stream, address.host, address.port, ssl=address.tls
                )
        except OSError as error:
            raise StreamLost(f"no connection to the engine: {error}") from error
        try:
            stream._send_request(path, body)
            await stream._upgraded
        except BaseException:
            await stream.close()
            raise
        return stream

    def _send_request(self, path: str, body: object) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: engine\r\nContent-Type: application/json\r\n"
            f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        self.write(head.encode() + data)

    def write(self, data: bytes) -> None:
        """Send to stdin; dropped when the stream is gone, which `lost` has told."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    @property
    def alive(self) -> bool:
        """Whether both directions are open, as far as we know."""
        return self._transport is not None and not self._transport.is_closing()

    async def close(self) -> None:
        """Close and wait until the transport has let go. Idempotent."""
        if self._transport is not None:
            self._transport.abort()
            await asyncio.shield(self._closed)

    # --- asyncio.Protocol ---------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # a stream protocol's
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the waiter, or the owner."""
        self._transport = None
        self._closed.set_result(None)
        if self._upgraded.done():
            self._lost()
        else:
            self._upgraded.set_exception(StreamLost(f"the engine closed the connection: {exc}"))

    def data_received(self, data: bytes) -> None:
        """Pass on what came."""
        if not self._upgraded.done():
            data = self._read_response_head(data)
        if self._upgraded.done():
            self._take_blocks(data)

    def _read_response_head(self, data: bytes) -> bytes:
        self._buffer += data
        head, found, rest = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return b""
        status_line = head.split(b"\r\n", 1)[0].decode(errors="replace")
        if status_line.split(" ")[1:2] not in (["101"], ["200"]):
            message = f"{status_line}: {rest[:300].decode(errors='replace')}"
            self._upgraded.set_exception(StreamLost(message))
            return b""
        self._buffer = b""
        self._upgraded.set_result(None)
        return rest

    def _take_blocks(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
            self._buffer = b""
        at = 0
        while at < len(data):
            if not self._left:
                if len(data) - at < HEADER:
                    self._buffer = data[at:]
                    return
                self._source = data[at]
                self._left = int.from_bytes(data[at + 4 : at + HEADER], "big")
                at += HEADER
                continue
            block = data[at : at + self._left]
            at += len(block)
            self._left -= len(block)
            if self._source != STDERR:
                self._received(block)
