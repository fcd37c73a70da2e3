"""Sessions whose other side falls silent, in virtual time: every wait on it ends.

`PaperContainer` is a container on paper: a helper that speaks the wire's frames, and an engine that
says whether it runs.
"""

from __future__ import annotations

import asyncio
import logging
import re
import struct
from typing import TYPE_CHECKING

import pytest

from agentflow.sim.clock import run_virtual
from agentflow.swe.environment.docker import wire
from agentflow.swe.environment.docker.errors import ContainerDied, EngineGone, StreamLost
from agentflow.swe.environment.docker.session import HelperSession
from agentflow.swe.environment.docker.shell_session import ShellSession
from agentflow.swe.environment.docker.wire import Command, Ended

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

ENDLESS = Command(argv=("x",), cwd="/", timeout_s=None, head_bytes=9, tail_bytes=9)
PATIENCE_S = 300.0
"""Of virtual time: more than any wait on a silent session may take."""


class PaperStream:
    """One connection; `silent` is one whose packets get lost without anybody being told."""

    def __init__(
        self, container: PaperContainer, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> None:
        self.alive = True
        self.silent = False
        self._container = container
        self._received, self._lost = received, lost
        self._frames = wire.FrameReader()

    def write(self, data: bytes) -> None:
        """Take frames to the helper."""
        if self.silent:
            return
        replies = [
            reply
            for payload in self._frames.feed(data)
            for reply in self._container.answers(payload)
        ]
        self.say(*replies)

    def say(self, *replies: bytes) -> None:
        """Bring replies back, all in one packet."""
        if self.alive and not self.silent:
            asyncio.get_running_loop().call_soon(self._received, b"".join(replies))

    def break_off(self) -> None:
        """End as a connection does when the engine is killed."""
        self.alive = False
        self._lost()

    async def close(self) -> None:
        """Let go."""
        self.alive = False


class PaperContainer:
    """A helper's state: what runs, what ended last, and every command that it ever started."""

    name = "paper"

    def __init__(self, stream: type[PaperStream] | None = None) -> None:
        self._stream = stream or PaperStream
        self.streams: list[PaperStream] = []
        self.running = self.last = 0
        self.started: list[int] = []
        self.runs = asyncio.Event()
        self.dead = False
        self.killed = False
        self.no_connection = False
        self.ends_after_hello = False

    async def connect(
        self, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> PaperStream:
        """Open a stream, or never answer."""
        if self.no_connection:
            await asyncio.Event().wait()
        self.streams.append(self._stream(self, received, lost))
        return self.streams[-1]

    async def ensure_running(self) -> None:
        """Answer for the engine."""
        if self.dead:
            raise ContainerDied("dead")

    async def was_killed(self) -> bool:
        """Answer for the engine about a process beside PID 1."""
        return self.killed

    def answers(self, payload: bytes) -> list[bytes]:
        """Reply as `helper/command.c` does."""
        match payload[:1]:
            case wire.HELLO:
                hello = wire.frame(
                    b"H" + struct.pack("<III", wire.PROTOCOL, self.running, self.last)
                )
                ends = self.ends_after_hello and self.running
                return [hello, self.end()] if ends else [hello]
            case wire.RUN if not self.running:
                (self.running,) = struct.unpack_from("<I", payload, 1)
                self.started.append(self.running)
                self.runs.set()
            case wire.KILL | wire.CLEAR if self.running:
                return [self.end()]
            case wire.LAST:
                return [self.last_end()]
            case _:
                pass
        return []

    def end(self) -> bytes:
        """End the running command."""
        self.last, self.running = self.running, 0
        return self.last_end()

    def last_end(self) -> bytes:
        """Tell the last command's end."""
        return wire.frame(b"E" + wire._END.pack(self.last, 0, 0, 0, 0, 0, 0, 0, 0))


async def begun(
    session: HelperSession, container: PaperContainer, command: Command = ENDLESS
) -> asyncio.Task[Ended]:
    """Start a command and return when the helper runs it."""
    task = asyncio.ensure_future(session.run(command))
    await container.runs.wait()
    return task


def within_patience(main: Coroutine[None, None, None]) -> None:
    """Run in virtual time; fails when it takes too long, and at once when nothing can come."""

    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await main

    run_virtual(limited())


def test_an_end_that_got_lost_in_silence_is_fetched() -> None:
    """A command without a deadline ends although its stream says nothing and never breaks."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        command = await begun(session, container)
        container.streams[0].silent = True
        container.end()
        assert (await command).id == 1
        assert len(container.streams) == 2
        assert not container.streams[0].alive

    within_patience(main())


def test_a_command_that_runs_on_is_left_alone() -> None:
    """Signs of life keep the one connection and the one command, for as long as it takes."""

    async def main() -> None:
        container = PaperContainer()
        command = await begun(session := HelperSession(container), container)
        await asyncio.wait({command}, timeout=100)
        assert not command.done()
        container.streams[0].say(container.end())
        assert (await command).id == 1
        assert (len(container.streams), container.started) == (1, [1])
        await session.close()

    within_patience(main())


def test_a_container_that_died_in_silence_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The engine is asked when the stream says nothing; the episode ends with the right cause."""
    caplog.set_level(logging.INFO)

    async def main() -> None:
        container = PaperContainer()
        command = await begun(HelperSession(container), container)
        container.streams[0].silent = container.dead = True
        with pytest.raises(ContainerDied):
            await command

    within_patience(main())
    assert "paper, loss 1 of 6: the session says nothing for 20 s" in caplog.messages


def test_an_end_in_one_packet_with_the_hello_is_kept() -> None:
    """A command that ends while its connection is made anew is not waited for again."""

    async def main() -> None:
        container = PaperContainer()
        command = await begun(HelperSession(container), container)
        container.ends_after_hello = True
        container.streams[0].break_off()
        began = asyncio.get_running_loop().time()
        assert (await command).id == 1
        assert asyncio.get_running_loop().time() == began

    within_patience(main())


def test_a_request_that_never_arrived_is_sent_again() -> None:
    """It ran once, although it was sent twice."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        await session.open()
        container.streams[0].silent = True
        command = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({command}, timeout=60)
        assert container.started == [1]
        container.streams[-1].say(container.end())
        assert (await command).id == 1

    within_patience(main())


def test_what_a_lost_caller_left_running_is_killed_first() -> None:
    """A command that was cancelled while its connection was gone does not hold up the next one."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        command = await begun(session, container)
        container.no_connection = True
        container.streams[0].break_off()
        await asyncio.wait({command}, timeout=1)
        command.cancel()
        await asyncio.wait({command})
        container.no_connection = False
        assert container.running == 1
        following = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({following}, timeout=1)
        assert (container.running, container.last) == (2, 1)
        container.streams[-1].say(container.end())
        assert (await following).id == 2

    within_patience(main())


def test_a_kill_that_nobody_confirms_gives_the_connection_up() -> None:
    """The next command meets a helper that is asked anew what it runs."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        command = await begun(session, container)
        container.streams[0].silent = True
        command.cancel()
        await asyncio.wait({command})
        assert not container.streams[0].alive
        following = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({following}, timeout=1)
        assert container.started == [1, 2]
        container.streams[-1].say(container.end())
        await following

    within_patience(main())


def test_a_cancellation_outlives_the_connection_that_breaks_over_it() -> None:
    """An engine that dies with the kill in its hands makes nobody wait for the command again."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        command = await begun(session, container)
        container.streams[0].silent = True
        command.cancel()
        await asyncio.wait({command}, timeout=1)
        assert not command.done()
        container.streams[0].break_off()
        await asyncio.wait({command}, timeout=1)
        assert command.cancelled()
        following = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({following}, timeout=1)
        assert (container.running, container.last, container.started) == (2, 1, [1, 2])
        container.streams[-1].say(container.end())
        assert (await following).id == 2

    within_patience(main())


@pytest.mark.parametrize("dead", [False, True])
def test_clearing_connects_anew_or_tells_that_the_container_is_dead(*, dead: bool) -> None:
    """Its connection broke just before: nothing but a typed error comes out."""

    async def main() -> None:
        container = PaperContainer()
        session = HelperSession(container)
        await session.open()
        container.streams[0].break_off()
        container.dead = container.no_connection = dead
        if dead:
            with pytest.raises(ContainerDied):
                await session.clear()
        else:
            await session.clear()
            assert len(container.streams) == 2

    within_patience(main())


def test_an_engine_that_takes_no_connection_is_told() -> None:
    """Neither a first connection nor a new one is waited for without end."""

    async def main() -> None:
        container = PaperContainer()
        container.no_connection = True
        with pytest.raises(StreamLost, match="no connection"):
            await HelperSession(container).open()

    within_patience(main())


class PaperShell(PaperStream):
    """A bash on paper: ends its first script at once, and no other."""

    scripts = 0

    def write(self, data: bytes) -> None:
        """Take a script."""
        self.scripts += 1
        nonce = re.search(rb"([0-9a-f]{32}) \$", data)
        if self.scripts == 1 and nonce is not None:
            self.say(nonce[1] + b" 0 -1\n")


def test_a_shell_whose_container_died_in_silence_is_told() -> None:
    """The fallback gives no sign of life, so its container is looked at."""

    async def main() -> None:
        container = PaperContainer(PaperShell)
        session = ShellSession(container)
        await session.open()
        command = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({command}, timeout=30)
        assert not command.done()
        container.dead = True
        with pytest.raises(ContainerDied):
            await command

    within_patience(main())


def test_a_cancellation_of_a_shells_command_outlives_its_container() -> None:
    """A command that cannot be killed any more is still cancelled, and the next one is told why."""

    async def main() -> None:
        container = PaperContainer(PaperShell)
        session = ShellSession(container)
        await session.open()
        command = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({command}, timeout=1)
        container.no_connection = container.dead = True
        command.cancel()
        await asyncio.wait({command})
        assert command.cancelled()
        with pytest.raises(ContainerDied):
            await session.run(ENDLESS)

    within_patience(main())


@pytest.mark.parametrize(
    ("make", "stream"),
    [(lambda c: HelperSession(c, durable=False), PaperStream), (ShellSession, PaperShell)],
    ids=["helper", "shell"],
)
def test_the_engines_end_is_no_kill_by_the_command(
    make: Callable[[PaperContainer], HelperSession | ShellSession], stream: type[PaperStream]
) -> None:
    """A restart takes along what runs beside PID 1; only a signal is the command's own doing."""

    async def main(*, killed: bool) -> Ended:
        container = PaperContainer(stream)
        session = make(container)
        await session.open()
        command = asyncio.ensure_future(session.run(ENDLESS))
        await asyncio.wait({command}, timeout=1)
        container.killed = killed
        container.streams[0].break_off()
        return await command

    assert run_virtual(main(killed=True)).exit_code == 137
    with pytest.raises(EngineGone, match="went away under a command"):
        run_virtual(main(killed=False))
