"""Supervision: the owner's end of `supervisor.py`, one for all environments of a builder.

Owns the supervisor process and one socket per running command. A command's tree is dead when
its socket has ended, and not before; whoever cancels waits for that.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.aio import shielded
from agentflow.swe.environment.supervisor import FAREWELL, KILL_PATIENCE_S, LENGTH

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.protocols import Runner

PROGRAM = Path(__file__).with_name("supervisor.py")

HANG_UP_PATIENCE_S = KILL_PATIENCE_S + 5.0
"""How long the end of a hung-up command is waited for: what its supervisor takes at most."""

EXIT_PATIENCE_S = HANG_UP_PATIENCE_S + KILL_PATIENCE_S
"""A supervisor without commands leaves at once; it first kills what commands are left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One command as the supervisor runs it."""

    argv: Sequence[str]
    """`argv[0]` is an absolute path; undecodable bytes are surrogate escapes."""
    env: Mapping[str, str]
    """The whole environment."""
    cwd: str
    timeout_s: float
    head_bytes: int
    tail_bytes: int
    script: str | None = None
    """Text to be found at `/dev/fd/63`."""
    wants_status: bool = False
    """Whether the program reports on descriptor 62."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """rlimits by name, `RLIMIT_AS` and such."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The end of a command, told by the supervisor."""

    exit_code: int
    """128 + n for signal n, -1 when it was killed at the deadline or because of a hang-up."""
    timed_out: bool
    tree_dead: bool
    """False if a process survived SIGKILL (it hangs in the kernel)."""
    dropped_bytes: int
    duration_s: float
    status: str
    """What the program reported on descriptor 62."""
    output: bytes = b""


class Call(asyncio.Protocol):
    """One command under way."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._answer = bytearray()
        self._transport: asyncio.Transport | None = None
        self.ended = asyncio.Event()
        """Set when nothing of the command is left."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        body = json.dumps(asdict(self._launch)).encode()
        transport.write(LENGTH.pack(len(body)) + body)

    def data_received(self, data: bytes) -> None:
        """Collect the answer."""
        self._answer += data

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's
        """Note the end, which comes after the answer or instead of it."""
        self._transport = None
        self.ended.set()

    def hang_up(self) -> None:
        """Have the command killed; `ended` tells when it is. Idempotent."""
        if self._transport is not None and self._transport.can_write_eof():
            self._transport.write_eof()

    async def end(self) -> None:
        """Kill the command and wait until nothing of it is left.

        A worker that does not answer, stopped perhaps by its own command, is killed; its parent
        then kills what it leaves.
        """
        self.hang_up()
        if not await self._ends_within(HANG_UP_PATIENCE_S):
            self._kill_worker()
            await self._ends_within(HANG_UP_PATIENCE_S)

    async def wait(self) -> None:
        """Wait for the end, which the worker brings about by itself at the deadline."""
        if not await self._ends_within(self._launch.timeout_s + HANG_UP_PATIENCE_S):
            await self.end()

    def outcome(self) -> Outcome | None:
        """The answer; None when the supervisor died without one."""
        answer = self._answer[LENGTH.size :]  # the pid stands before it
        if len(answer) < LENGTH.size:
            return None
        (size,) = LENGTH.unpack_from(answer)
        head = answer[LENGTH.size : LENGTH.size + size]
        if len(head) < size:
            return None
        output = bytes(answer[LENGTH.size + size :])
        return Outcome(output=output, **json.loads(head))

    async def _ends_within(self, patience_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                await self.ended.wait()
        return self.ended.is_set()

    def _kill_worker(self) -> None:
        if len(self._answer) >= LENGTH.size and not self.ended.is_set():
            (pid,) = LENGTH.unpack_from(self._answer)
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Supervision:
    """Starts the supervisor on first use, and anew when it has died."""

    def __init__(self, runner: Runner, *, directory: Path) -> None:
        """`directory` is removed by the supervisor if its owner dies without `close`."""
        self._runner = runner
        self._directory = directory
        self._lock = asyncio.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    async def begin(self, launch: Launch) -> Call:
        """Start a command. Raises OSError when no process can be had."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                await self._hand_over(theirs)
            loop = asyncio.get_running_loop()
            _, call = await loop.create_connection(lambda: Call(launch), sock=ours)
        except BaseException:
            ours.close()
            raise
        return call

    async def close(self) -> None:
        """End the supervisor; commands under way are killed by their own hang-up. Idempotent."""
        async with self._lock:
            await self._let_go()

    async def _hand_over(self, link: socket.socket) -> None:
        async with self._lock:
            if self._control is None:
                await shielded(self._start())
            try:
                self._send(link)
            except OSError:  # it was killed since the last command
                await self._let_go()
                await shielded(self._start())
                self._send(link)

    def _send(self, link: socket.socket) -> None:
        assert self._control is not None
        socket.send_fds(self._control, [b"+"], [link.fileno()])

    async def _start(self) -> None:
        """Start it; not to be cut short, because its thread uses the socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._process = await self._runner.to_thread(
                    _spawn, theirs.fileno(), self._directory
                )
            except BaseException:
                ours.close()
                raise
        self._control = ours

    async def _let_go(self) -> None:
        if self._control is not None:
            with suppress(OSError):  # it was killed, or does not listen
                self._control.send(FAREWELL, socket.MSG_DONTWAIT)
            self._control.close()
            self._control = None
        if self._process is not None:
            process, self._process = self._process, None
            await self._runner.to_thread(_await_exit, process)


def _spawn(control: int, directory: Path) -> subprocess.Popen[bytes]:
    python = [sys.executable, "-I", "-S", "-X", "utf8"]
    return subprocess.Popen(
        [*python, os.fspath(PROGRAM), str(control), os.fspath(directory)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        cwd="/",
        env={},
        pass_fds=(control,),
        start_new_session=True,  # Ctrl-C is for the owner to handle
    )


def _await_exit(process: subprocess.Popen[bytes]) -> None:
    with suppress(subprocess.TimeoutExpired):
        process.wait(EXIT_PATIENCE_S)
        return
    process.kill()
    process.wait()
