"""A session: the process inside a container that runs commands, and our end of it.

Owns the connection, the numbers of commands and what happens when the connection breaks. Decides
nothing about containers: `Host` does, which says whether there is still one to talk to.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Protocol

from agentflow.errors import EnvDied
from agentflow.swe.environment.docker import wire
from agentflow.swe.environment.docker.errors import ContainerDied, StreamLost

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.swe.environment.docker.stream import RawStream
    from agentflow.swe.environment.docker.wire import Command, Ended

GRACE_S = 6.0
"""Past a command's own deadline: the helper gives a kill up to 3 s, a busy machine needs some."""
CLEAR_S = 6.0
"""For the answer to `clear`, the last thing that is tried."""
HELLO_S = 20.0
"""For the first answer on a new connection."""
LOSS_PAUSE_S = 0.1
"""Times 0, 1, 2, …: the pauses before a lost connection is made again."""
ATTEMPTS = 6
"""Connections that one command may use up before its session counts as dead."""


class Host(Protocol):
    """What a session asks of its container."""

    async def connect(
        self, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> RawStream:
        """Open a stream to the process. Raises StreamLost."""
        ...

    async def ensure_running(self) -> None:
        """Return when the container runs; raises the typed error when it is gone."""
        ...


class Session(Protocol):
    """Runs one command after the other inside a container."""

    has_helper: bool
    """Whether `helper.PATH` is there, for `put` and `get`."""

    async def open(self) -> None:
        """Connect. Raises StreamLost, TimeoutError."""
        ...

    async def run(self, command: Command) -> Ended:
        """Run a command to its end. Raises EnvDied or ContainerKilled; ValueError for a NUL."""
        ...

    async def clear(self) -> None:
        """Kill everything that earlier commands left."""
        ...

    async def keep_for(self, seconds: int) -> None:
        """Let the container live through so many seconds of silence."""
        ...

    async def close(self) -> None:
        """Let go of the connection; the container stays. Idempotent."""
        ...


class HelperSession:
    """The static helper's: frames over an attach to PID 1, or over an exec beside it.

    A helper that is not PID 1 is not `durable`: a command can kill it, and then its end is told as
    a kill, never run again.
    """

    has_helper = True

    def __init__(self, host: Host, *, durable: bool = True) -> None:
        self._host = host
        self._durable = durable
        self._closed = False
        self._shared = False
        self._turn = asyncio.Lock()
        self._link: _Link | None = None
        self._number = 0

    async def open(self) -> None:
        """Connect and say hello. Raises StreamLost, TimeoutError."""
        await self._connected()

    async def run(self, command: Command) -> Ended:
        """Run a command; when the connection breaks, find out how the command ended."""
        async with self._turn:
            if self._link is None:
                await self._reconnect()
            self._number += 1
            request = wire.run_request(self._number, command)
            for attempt in range(ATTEMPTS):
                try:
                    return await self._attempt(request, command.timeout_s)
                except StreamLost:
                    await self._drop_link()
                    await self._after_loss(attempt)
                    if not self._durable:
                        return _killed_with_its_helper(self._number)
            raise ContainerDied("the container runs, but its session does not answer")

    async def clear(self) -> None:
        """Kill everything but the helper."""
        async with self._turn:
            (await self._connected())[0].write(wire.frame(wire.CLEAR))

    def share(self) -> None:
        """Tell the helper, now or when it answers again, that another one runs beside it."""
        self._shared = True
        if self._link is not None:
            self._link.write(wire.frame(wire.SHARE))

    async def keep_for(self, seconds: int) -> None:
        """Set the silence after which the helper leaves."""
        async with self._turn:
            (await self._connected())[0].write(wire.ttl_request(seconds))

    async def close(self) -> None:
        """Close the connection for good. Idempotent."""
        self._closed = True
        await self._drop_link()

    # --- inside -------------------------------------------------------------------------------

    async def _reconnect(self) -> None:
        """Before a first command on a new connection: whatever is wrong comes out typed."""
        for attempt in range(ATTEMPTS):
            try:
                await self._connected()
            except StreamLost:
                await self._after_loss(attempt)
            else:
                return
        raise ContainerDied("the container runs, but its session does not answer")

    async def _after_loss(self, attempt: int) -> None:
        """Raise the typed error when the container is gone; else give it a moment.

        An engine says "running" for some milliseconds after the end of PID 1.
        """
        if self._closed:
            raise EnvDied("the session was closed")
        await asyncio.sleep(LOSS_PAUSE_S * attempt)
        await self._host.ensure_running()

    async def _connected(self) -> tuple[_Link, wire.Hello | None]:
        """Return the link, and the helper's hello when the link is new."""
        if self._link is not None and self._link.alive:
            return self._link, None
        await self._drop_link()
        link = _Link()
        try:
            async with asyncio.timeout(HELLO_S):
                await link.open(self._host)
                answer = link.expect(lambda reply: isinstance(reply, wire.Hello))
                link.write(wire.frame(wire.HELLO))
                hello = await answer
        except TimeoutError as error:
            await link.close()
            raise StreamLost(f"no hello within {HELLO_S:g} s") from error
        except BaseException:
            await link.close()
            raise
        assert isinstance(hello, wire.Hello)  # `expect` let nothing else pass
        self._link = link
        if self._shared:
            link.write(wire.frame(wire.SHARE))
        self._number = max(self._number, hello.running, hello.last)
        return link, hello

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _attempt(self, request: bytes, timeout_s: float | None) -> Ended:
        number = self._number
        link, hello = await self._connected()
        answer = link.expect(lambda reply: isinstance(reply, wire.Ended) and reply.id == number)
        if hello is None or number not in {hello.running, hello.last}:
            link.write(request)
        elif hello.last == number:
            link.write(wire.frame(wire.LAST))
        try:
            ended = await self._wait(link, answer, timeout_s)
        except asyncio.CancelledError:
            await _kill(link, answer)
            raise
        assert isinstance(ended, wire.Ended)  # `expect` let nothing else pass
        return ended

    @staticmethod
    async def _wait(
        link: _Link, answer: asyncio.Future[wire.Hello | Ended], timeout_s: float | None
    ) -> wire.Hello | Ended:
        """Wait past the helper's own deadline, then clear, then give the connection up."""
        limit = None if timeout_s is None else timeout_s + GRACE_S
        await asyncio.wait({answer}, timeout=limit)
        if not answer.done():
            link.write(wire.frame(wire.CLEAR))
            await asyncio.wait({answer}, timeout=CLEAR_S)
        if not answer.done():
            raise StreamLost("no answer past the command's deadline")
        return answer.result()


async def _kill(link: _Link, answer: asyncio.Future[wire.Hello | Ended]) -> None:
    """End a command whose caller was cancelled, and wait until it is dead."""
    link.write(wire.frame(wire.KILL))
    await asyncio.wait({answer}, timeout=GRACE_S)
    if answer.done() and not answer.cancelled():
        answer.exception()


def _killed_with_its_helper(number: int) -> Ended:
    return wire.Ended(
        id=number,
        wait_status=signal.SIGKILL,
        flags=wire.EndFlag.KILLED | wire.EndFlag.OOM_UNKNOWN,
        error=0,
        total_bytes=0,
        duration_s=0.0,
        kill_s=0.0,
        oom_kills=0,
        output=b"",
    )


class _Link:
    """One connection: what comes late on it can touch no other."""

    def __init__(self) -> None:
        self._reader = wire.FrameReader()
        self._stream: RawStream | None = None
        self._answer: asyncio.Future[wire.Hello | Ended] | None = None
        self._wanted: Callable[[wire.Hello | Ended], bool] | None = None

    @property
    def alive(self) -> bool:
        return self._stream is not None and self._stream.alive

    async def open(self, host: Host) -> None:
        self._stream = await host.connect(self._received, self._lost)

    def write(self, data: bytes) -> None:
        if self._stream is not None:
            self._stream.write(data)

    def expect(
        self, wanted: Callable[[wire.Hello | Ended], bool]
    ) -> asyncio.Future[wire.Hello | Ended]:
        """Return a future for the next reply that is `wanted`; StreamLost when none can come."""
        self._answer = asyncio.get_running_loop().create_future()
        self._wanted = wanted
        if not self.alive:
            self._lost()
        return self._answer

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()

    def _received(self, data: bytes) -> None:
        for payload in self._reader.feed(data):
            reply = wire.parse(payload)
            answer, wanted = self._answer, self._wanted
            if reply is None or answer is None or wanted is None or answer.done():
                continue
            if wanted(reply):
                answer.set_result(reply)

    def _lost(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(StreamLost("the connection to the session broke"))
            self._answer.exception()  # retrieved here: whoever waited may be gone
