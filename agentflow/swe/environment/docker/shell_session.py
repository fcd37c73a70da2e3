"""ShellSession: the fallback where we ship no helper for the image's architecture.

One bash beside PID 1, fed over an exec. A command's output goes straight to the stream and ends
with a 128-bit nonce that the command never sees. After each command, and at a deadline from a
second exec, `kill -9 -1` ends everything at one instant but its caller and PID 1, and PID 1 is a
bash that waits, which no signal from inside can end.

Weaker than the helper: a time-out also ends what earlier commands were allowed to leave and costs a
new session (0.1 s or more), a command of the same user can reach the shell's descriptors, and
when the engine restarts the command in flight is lost.
"""

from __future__ import annotations

import asyncio
import secrets
import shlex
from contextlib import suppress
from typing import TYPE_CHECKING

from agentflow.errors import EnvDied, EpisodeError
from agentflow.swe.environment.docker.errors import ContainerDied, EngineGone, StreamLost
from agentflow.swe.environment.docker.kept_output import KeptOutput
from agentflow.swe.environment.docker.wire import Ended, EndFlag

if TYPE_CHECKING:
    from agentflow.swe.environment.docker.link import Host, Stream
    from agentflow.swe.environment.docker.wire import Command

SHELL = ("/bin/bash", "--norc", "--noprofile")
BEAT_S = 10.0
"""Between two looks whether the container of a running command still runs."""
OPEN_S = 20.0
"""For a new shell's first answer."""
KILL_S = 3.0
"""For one attempt to kill; at the pids limit an exec can fail, and is tried again."""
ATTEMPTS = 6
LOSS_PAUSE_S = 0.1
SIGKILL = 9
OOM_KILLS = (
    "k() { local n=-1 f w; for f in /sys/fs/cgroup/memory.events"
    " /sys/fs/cgroup/memory/memory.oom_control; do [ -r $f ] || continue;"
    ' while read -r w x; do [ "$w" = oom_kill ] && n=$x; done <$f; break; done; K=$n; }\n'
)
"""Defines `k`, which sets K to the cgroup's count of OOM kills, in builtins."""


def pid_1(ttl_s: int) -> tuple[str, ...]:
    """Return the argv of a PID 1 that waits, and so reaps what others leave.

    A bash in `read` would wait as well, but leave the dead as zombies, which fill the pids limit.
    """
    wait = "while ((SECONDS < e)); do sleep $((e - SECONDS)) & wait; done"
    return (*SHELL, "-c", f"trap '' TERM; e=$((SECONDS + {ttl_s})); {wait}; exit 75")


class ShellSession:
    """A bash that runs one command after the other."""

    has_helper = False

    def __init__(self, host: Host) -> None:
        self._host = host
        self._turn = asyncio.Lock()
        self._shell: _Shell | None = None
        self._number = 0

    @property
    def connected(self) -> bool:
        """Whether the shell's connection is up."""
        return self._shell is not None and self._shell.alive

    async def open(self) -> None:
        """Start the shell. Raises StreamLost, TimeoutError."""
        await self._connected()

    async def run(self, command: Command) -> Ended:
        """Run a command to its end; see `Session.run`."""
        async with self._turn:
            self._number += 1
            shell = await self._ready()
            try:
                return await self._run_in(shell, command)
            except asyncio.CancelledError:
                try:
                    await self._kill(shell)
                except EpisodeError:  # may not take the cancellation's place; the next one meets it
                    await self.close()
                raise

    async def clear(self) -> None:
        """Kill everything; the next command gets a new shell."""
        async with self._turn:
            if self._shell is not None:
                await self._kill(self._shell)

    async def keep_for(self, seconds: int) -> None:
        """PID 1 of this session counts from its start, and `ttl_s` is all that it has."""

    async def close(self) -> None:
        """Let go of the shell. Idempotent."""
        shell, self._shell = self._shell, None
        if shell is not None:
            await shell.close()

    # --- inside -------------------------------------------------------------------------------

    async def _ready(self) -> _Shell:
        for attempt in range(ATTEMPTS):
            try:
                return await self._connected()
            except StreamLost:
                await asyncio.sleep(LOSS_PAUSE_S * attempt)
                await self._host.ensure_running()
        raise ContainerDied("the container runs, but no shell starts in it")

    async def _connected(self) -> _Shell:
        if self._shell is not None and self.connected:
            return self._shell
        await self.close()
        shell = _Shell()
        try:
            async with asyncio.timeout(OPEN_S):
                await shell.open(self._host)
                await shell.begin(OOM_KILLS, head=0, tail=0)
        except TimeoutError as error:
            await shell.close()
            raise StreamLost(f"the shell does not answer within {OPEN_S:g} s") from error
        except BaseException:
            await shell.close()
            raise
        self._shell = shell
        return shell

    async def _run_in(self, shell: _Shell, command: Command) -> Ended:
        loop = asyncio.get_running_loop()
        began = loop.time()
        done = shell.begin(_script(command), head=command.head_bytes, tail=command.tail_bytes)
        flags = EndFlag(0)
        with suppress(TimeoutError):
            async with asyncio.timeout(command.timeout_s):
                await self._watch(done)
        deadline = loop.time()
        if not done.done():
            flags |= EndFlag.TIMED_OUT
            await self._kill(shell)
            await asyncio.wait({done}, timeout=KILL_S)
        status, oom = 0, -1
        try:
            status, oom = done.result() if done.done() else (SIGKILL, -1)
        except StreamLost:  # the shell was killed: by us at the deadline, or by the command
            await self.close()
            await self._host.ensure_running()
            if not flags and not await self._host.was_killed():
                raise EngineGone("the engine went away under a command of the shell") from None
            status = SIGKILL
            flags |= EndFlag.KILLED
        return Ended(
            id=self._number,
            wait_status=status,
            flags=flags | (EndFlag.OOM_UNKNOWN if oom < 0 else EndFlag(0)),
            error=0,
            total_bytes=shell.output.total,
            duration_s=loop.time() - began,
            kill_s=loop.time() - deadline,
            oom_kills=max(oom, 0),
            output=shell.output.value(),
        )

    async def _watch(self, done: asyncio.Future[tuple[int, int]]) -> None:
        """Wait as long as the container runs: a shell at work gives no sign of life."""
        while not done.done():
            await asyncio.wait({done}, timeout=BEAT_S)
            if not done.done():
                await self._host.ensure_running()

    async def _kill(self, shell: _Shell) -> None:
        """Kill everything in the container, the shell too, from a second exec."""
        for _ in range(ATTEMPTS):
            killer = _Shell()
            try:
                async with asyncio.timeout(KILL_S):
                    await killer.open(self._host)
                    await killer.begin("kill -9 -1\n", head=0, tail=0)
            except (StreamLost, TimeoutError):
                await asyncio.sleep(LOSS_PAUSE_S)
            else:
                await shell.wait_lost(KILL_S)
                return
            finally:
                await killer.close()
        await self._host.ensure_running()
        raise EnvDied("a command could not be killed")


class _Shell:
    """One bash over one exec."""

    def __init__(self) -> None:
        self.output = KeptOutput(head=0, tail=0)
        self._stream: Stream | None = None
        self._done: asyncio.Future[tuple[int, int]] | None = None
        self._lost_event = asyncio.Event()
        self._mark = b""
        self._held = b""

    @property
    def alive(self) -> bool:
        return self._stream is not None and self._stream.alive

    async def open(self, host: Host) -> None:
        self._stream = await host.connect(self._received, self._lost)

    def begin(
        self, script: str | bytes, *, head: int, tail: int
    ) -> asyncio.Future[tuple[int, int]]:
        """Send a script; the future gives wait status and OOM kills, or StreamLost."""
        nonce = secrets.token_hex(16)
        self.output = KeptOutput(head=head, tail=tail)
        self._mark, self._held = nonce.encode() + b" ", b""
        self._done = asyncio.get_running_loop().create_future()
        text = script if isinstance(script, bytes) else script.encode("utf-8", "surrogateescape")
        end = f"\nprintf '%s %d %d\\n' {nonce} ${{e:-0}} ${{O:--1}}\n"
        if self._stream is None or not self._stream.alive:
            self._lost()
        else:
            self._stream.write(text + end.encode())
        return self._done

    async def wait_lost(self, timeout_s: float) -> None:
        """Wait until the shell is gone."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._lost_event.wait()
        except TimeoutError:
            await self.close()

    async def close(self) -> None:
        if self._stream is not None:
            await self._stream.close()

    def _received(self, data: bytes) -> None:
        if self._done is None or self._done.done():
            return  # what a background child wrote between two commands
        data = self._held + data
        at = data.find(self._mark)
        if at < 0:
            keep = len(self._mark) - 1
            self.output.add(data[:-keep])
            self._held = data[-keep:]
            return
        line, ended, _ = data[at + len(self._mark) :].partition(b"\n")
        if not ended:
            self.output.add(data[:at])
            self._held = data[at:]
            return
        self.output.add(data[:at])
        self._held = b""
        code, oom = line.split()
        self._done.set_result((_wait_status(int(code)), int(oom)))

    def _lost(self) -> None:
        self._lost_event.set()
        if self._done is not None and not self._done.done():
            self.output.add(self._held)
            self._done.set_exception(StreamLost("the shell ended"))
            self._done.exception()  # retrieved here: whoever waited may be gone


def _wait_status(exit_code: int) -> int:
    return exit_code << 8


def _script(command: Command) -> bytes:
    """Return bash that runs a command; sets e to its exit code and O to the OOM kills."""
    quote = shlex.quote
    exports = "".join(f"export {quote(f'{k}={v}')};" for k, v in command.env.items())
    program = " ".join(quote(part) for part in command.argv)
    text = (
        f"k; b=$K; ( cd -- {quote(command.cwd)} || exit 126; {exports}"
        f" if type -P setsid >/dev/null; then exec setsid {program}; else exec {program}; fi )"
    ).encode("utf-8", "surrogateescape")
    if b"\0" in text:
        raise ValueError("an argument or a variable holds a NUL byte, which none may")
    if command.script is not None:
        body = shlex.quote(command.script.decode("utf-8", "surrogateescape"))
        text += b" 3< <(printf %s " + body.encode("utf-8", "surrogateescape") + b")"
    text += b" </dev/null 2>&1; e=$?"
    if not command.keep_background:
        text += b"; kill -9 -1 2>/dev/null"
    return text + b"; k; [ $K -ge 0 ] && O=$((K - b)) || O=-1"
