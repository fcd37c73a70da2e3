"""A session: the process inside a container that runs commands, and our end of it.

Owns the connection, the numbers of commands and what happens when the connection breaks. Decides
nothing about containers: `Host` does, which says whether there is still one to talk to. No wait
trusts the other side: while a command runs, its helper is asked for a sign of life now and then.
"""

from __future__ import annotations

import asyncio
import logging
import math
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from agentflow.errors import EnvDied
from agentflow.swe.environment.docker import wire
from agentflow.swe.environment.docker.errors import ContainerDied, EngineGone, StreamLost
from agentflow.swe.environment.docker.link import Host, Link

if TYPE_CHECKING:
    from agentflow.swe.environment.docker.wire import Command, Ended, Hello

log = logging.getLogger(__name__)

GRACE_S = 6.0
"""Past a command's own deadline: the helper gives a kill up to 3 s, a busy machine needs some."""
CLEAR_S = 6.0
"""For the answer to `clear`, the last thing that is tried."""
BEAT_S = 10.0
"""Between two questions to the helper of a running command, whether it is still there."""
LOSS_PAUSE_S = 0.1
"""Times 0, 1, 2, …: the pauses before a lost connection is made again."""
ATTEMPTS = 6
"""Connections that one command may use up before its session counts as dead."""


class Session(Protocol):
    """Runs one command after the other inside a container."""

    has_helper: bool
    """Whether `helper.PATH` is there, for `put` and `get`."""

    @property
    def connected(self) -> bool:
        """Whether its connection is up; that of a dead container never is."""
        ...

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
    a kill, never run again. An engine that is restarted ends it too, which is told as EngineGone.
    """

    has_helper = True

    def __init__(self, host: Host, *, durable: bool = True) -> None:
        self._host = host
        self._durable = durable
        self._closed = False
        self._shared = False
        self._turn = asyncio.Lock()
        self._link: Link | None = None
        self._number = 0
        """Of the last command, here or at the helper's; none is used twice."""
        self._current = 0
        """Of the command that somebody waits for; 0 for none."""

    @property
    def connected(self) -> bool:
        """Whether its connection is up."""
        return self._link is not None and self._link.alive

    async def open(self) -> None:
        """Connect and say hello. Raises StreamLost, TimeoutError."""
        await self._connected()

    async def run(self, command: Command) -> Ended:
        """Run a command; when the connection breaks, find out how the command ended."""
        async with self._turn:
            if self._link is None:
                await self._reconnect()
            self._number += 1
            self._current = self._number
            try:
                return await self._run(wire.run_request(self._number, command), command.timeout_s)
            finally:
                self._current = 0

    async def clear(self) -> None:
        """Kill everything but the helper."""
        async with self._turn:
            await self._reconnect()
            assert self._link is not None
            self._link.write(wire.frame(wire.CLEAR))

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

    async def _run(self, request: bytes, timeout_s: float | None) -> Ended:
        for attempt in range(ATTEMPTS):
            try:
                return await self._attempt(request, timeout_s)
            except StreamLost as error:
                await self._drop_link()
                await self._after_loss(error, attempt)
                if not self._durable:
                    return await self._end_with_its_helper()
        raise ContainerDied("the container runs, but its session does not answer")

    async def _end_with_its_helper(self) -> Ended:
        """Tell a kill by the command from the loss of the engine, which takes the helper along."""
        if not await self._host.was_killed():
            raise EngineGone("the engine went away under a command that ran beside another one")
        return _killed_with_its_helper(self._current)

    async def _reconnect(self) -> None:
        """Before a first command on a new connection: whatever is wrong comes out typed."""
        for attempt in range(ATTEMPTS):
            try:
                await self._connected()
            except StreamLost as error:
                await self._after_loss(error, attempt)
            else:
                return
        raise ContainerDied("the container runs, but its session does not answer")

    async def _after_loss(self, loss: StreamLost, attempt: int) -> None:
        """Raise the typed error when the container is gone; else give it a moment.

        An engine says "running" for some milliseconds after the end of PID 1.
        """
        if self._closed:
            raise EnvDied("the session was closed")
        log.info("%s, loss %d of %d: %s", self._host.name, attempt + 1, ATTEMPTS, loss)
        await asyncio.sleep(LOSS_PAUSE_S * attempt)
        await self._host.ensure_running()

    async def _connected(self) -> tuple[Link, Hello | None]:
        """Return the link, and the helper's hello when the link is new."""
        if self._link is not None and self.connected:
            return self._link, None
        await self._drop_link()
        link = Link()
        try:
            await link.open(self._host)
            hello = await link.hello()
        except BaseException:
            await link.close()
            raise
        self._link = link
        if self._shared:
            link.write(wire.frame(wire.SHARE))
        if hello.running not in {0, self._current}:  # its caller gave up while we were away
            link.write(wire.frame(wire.KILL))
        self._number = max(self._number, hello.running, hello.last)
        return link, hello

    async def _drop_link(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            await link.close()

    async def _attempt(self, request: bytes, timeout_s: float | None) -> Ended:
        number = self._current
        link, hello = await self._connected()
        if hello is None or number not in {hello.running, hello.last}:
            link.write(request)
        elif hello.last == number:
            link.write(wire.frame(wire.LAST))
        try:
            return await self._wait(link, number, timeout_s)
        except asyncio.CancelledError:
            await self._end_now(link, number)
            raise

    async def _end_now(self, link: Link, number: int) -> None:
        """Kill a command that nobody waits for any more.

        Without the helper's word for it the connection is given up: the next one asks what runs.
        """
        ended = None
        link.write(wire.frame(wire.KILL))
        with suppress(StreamLost):  # which may not take the cancellation's place
            ended = await link.ended(number, within_s=GRACE_S)
        if ended is None:
            await self._drop_link()

    async def _wait(self, link: Link, number: int, timeout_s: float | None) -> Ended:
        """Wait past the helper's own deadline, then clear, then give the connection up.

        As long as there is time the helper must say, now and then, that it runs the command.
        """
        now = asyncio.get_running_loop().time
        give_up_at = math.inf if timeout_s is None else now() + timeout_s + GRACE_S
        while (left_s := give_up_at - now()) > 0:
            if (end := await link.ended(number, within_s=min(BEAT_S, left_s))) is not None:
                return end
            if left_s > BEAT_S and (await link.hello()).running != number:
                break
        link.write(wire.frame(wire.CLEAR))
        if (end := await link.ended(number, within_s=CLEAR_S)) is not None:
            return end
        raise StreamLost("no answer past the command's deadline")


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
