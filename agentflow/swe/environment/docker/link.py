"""Link: one connection to a helper, and the two replies that somebody may wait for on it.

What comes late on a connection can touch no other. Every wait here ends: with the reply, with the
connection, or after `HELLO_S`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from agentflow.swe.environment.docker import wire
from agentflow.swe.environment.docker.errors import StreamLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.swe.environment.docker.wire import Ended, Hello

BROKEN = "the connection to the session broke"
HELLO_S = 20.0
"""For a connection, and for an answer to a hello on it: a helper kills for up to 6 s."""


class Stream(Protocol):
    """Bytes to and from a process in a container; `RawStream` is the real one."""

    @property
    def alive(self) -> bool:
        """Whether it is open, as far as we know."""
        ...

    def write(self, data: bytes) -> None:
        """Send to the process's stdin."""
        ...

    async def close(self) -> None:
        """Close it. Idempotent."""
        ...


class Host(Protocol):
    """What a session asks of its container."""

    name: str
    """The container's, for the log."""

    async def connect(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> Stream:
        """Open a stream to the process. Raises StreamLost."""
        ...

    async def ensure_running(self) -> None:
        """Return when the container runs; raises the typed error when it is gone."""
        ...

    async def was_killed(self) -> bool:
        """Whether a signal ended the process beside PID 1, and not just the connection to it."""
        ...


class Link:
    """One connection; used by one task at a time."""

    def __init__(self) -> None:
        self._reader = wire.FrameReader()
        self._stream: Stream | None = None
        self._hello: asyncio.Future[Hello] | None = None
        self._end: asyncio.Future[Ended] | None = None
        self._awaited = 0
        self._last: Ended | None = None

    @property
    def alive(self) -> bool:
        """Whether replies can still come."""
        return self._stream is not None and self._stream.alive

    async def open(self, host: Host) -> None:
        """Connect. Raises StreamLost."""
        try:
            async with asyncio.timeout(HELLO_S):
                self._stream = await host.connect(self._received, self._lost)
        except TimeoutError as error:
            raise StreamLost(f"no connection to the session within {HELLO_S:g} s") from error

    def write(self, data: bytes) -> None:
        """Send a frame; dropped when the connection is gone, which whoever waits is told."""
        if self._stream is not None:
            self._stream.write(data)

    async def hello(self) -> Hello:
        """Ask for a sign of life. Raises StreamLost when none comes."""
        self._hello = asyncio.get_running_loop().create_future()
        if not self.alive:
            self._lost()
        self.write(wire.frame(wire.HELLO))
        try:
            async with asyncio.timeout(HELLO_S):
                return await self._hello
        except TimeoutError as error:
            raise StreamLost(f"the session says nothing for {HELLO_S:g} s") from error

    async def ended(self, number: int, *, within_s: float) -> Ended | None:
        """Wait for a command's end, which may have come already; None where it does not come.

        Raises StreamLost. The future is awaited itself, and given up with the wait: one turn of
        the loop less for every command.
        """
        if self._last is not None and self._last.id == number:
            return self._last
        if not self.alive:
            raise StreamLost(BROKEN)
        self._end = asyncio.get_running_loop().create_future()
        self._awaited = number
        try:
            async with asyncio.timeout(within_s):
                return await self._end
        except TimeoutError:
            return None

    async def close(self) -> None:
        """Close the connection. Idempotent."""
        if self._stream is not None:
            await self._stream.close()

    def _received(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            reply = wire.parse(payload)
            if isinstance(reply, wire.Hello):
                if self._hello is not None and not self._hello.done():
                    self._hello.set_result(reply)
            elif reply is not None:
                self._take_end(reply)

    def _take_end(self, ended: Ended) -> None:
        """Keep an end for whoever asks later: it may come in one packet with the hello."""
        self._last = ended
        if self._end is not None and not self._end.done() and ended.id == self._awaited:
            self._end.set_result(ended)

    def _lost(self) -> None:
        for waiting in (self._hello, self._end):
            if waiting is not None and not waiting.done():
                waiting.set_exception(StreamLost(BROKEN))
                waiting.exception()  # retrieved here: whoever waited may be gone
