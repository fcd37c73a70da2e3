"""The helper of every machine at work, as PID 1 of a namespace: arm64's through an emulator."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from real_parts import missing

from agentflow.swe.environment.docker import helper
from agentflow.swe.environment.docker.session import HelperSession
from agentflow.swe.environment.docker.wire import Command, EndFlag

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

pytestmark = pytest.mark.docker

TREE = "trap '' TERM; (setsid sleep 1000 &); nohup sleep 1000 & (sleep 1000 & sleep 1000) & wait"


class ProcessHost:
    """A process on this machine in a container's place: its pipes are the stream."""

    name = "a process"

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._reading: asyncio.Task[None] | None = None

    async def connect(
        self, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> ProcessHost:
        """Connect to it, once."""
        self._reading = asyncio.ensure_future(self._read(received, lost))
        return self

    async def ensure_running(self) -> None:
        """Fail: nothing here ends it."""
        raise AssertionError("the helper ended")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._process.returncode is None

    def write(self, data: bytes) -> None:
        """Send to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, received: Callable[[bytes], None], lost: Callable[[], None]) -> None:
        assert self._process.stdout is not None
        while data := await self._process.stdout.read(65536):
            received(data)
        lost()


@asynccontextmanager
async def serving(machine: str, *, prepare: str = "") -> AsyncIterator[HelperSession]:
    """Yield a session with the shipped binary, in namespaces that `prepare` has prepared."""
    emulator = [] if machine == platform.machine() else [f"qemu-{machine}-static"]
    if emulator and shutil.which(emulator[0]) is None:
        missing(f"no {emulator[0]} on PATH: scripts/container-extras.sh installs it")
    if os.geteuid() != 0:
        pytest.skip("a PID namespace needs root")
    binary = str(helper.FOLDER / "bin" / f"helper-{machine}")
    process = await asyncio.create_subprocess_exec(
        *("unshare", "--fork", "--pid", "--mount-proc", "--kill-child"),
        *("/bin/sh", "-ec", f'{prepare}\nexec "$@"', "sh", *emulator, binary, "serve", "600"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    session = HelperSession(ProcessHost(process))
    yield session
    await session.close()
    process.kill()
    await process.wait()


@pytest.fixture(params=["x86_64", "aarch64"])
async def session(request: pytest.FixtureRequest) -> AsyncIterator[HelperSession]:
    """A session with each machine's binary."""
    async with serving(request.param) as session:
        yield session


def command(text: str, *, timeout_s: float = 30, **options: object) -> Command:
    """Make a command of bash."""
    facts = {"head_bytes": 1000, "tail_bytes": 1000, "cwd": "/", "timeout_s": timeout_s, **options}
    return Command(argv=("/bin/bash", "-c", text), **facts)  # type: ignore[arg-type]


async def test_a_command_and_its_end(session: HelperSession) -> None:
    """Exit code, both outputs in order, variables, working directory, closed stdin."""
    text = "echo out; echo err >&2; echo $A; pwd; cat; exit 7"
    ended = await session.run(command(text, env={"A": "1"}, cwd="/usr"))
    assert (ended.exit_code, ended.output) == (7, b"out\nerr\n1\n/usr\n")
    assert (await session.run(command("kill -9 $$"))).exit_code == 137


async def test_head_and_tail_of_much_output(session: HelperSession) -> None:
    """Bounded, and everything is counted."""
    ended = await session.run(command("seq 1000000"))
    assert ended.total_bytes == 6888896
    assert ended.output[:6] == b"1\n2\n3\n"
    assert ended.output[-8:] == b"1000000\n"
    assert len(ended.output) == 2000


async def test_input_and_scripts(session: HelperSession) -> None:
    """Given bytes are its stdin, or a file at descriptor 3."""
    assert (
        await session.run(command("cat", stdin=b"\0given\xc0\xdb"))
    ).output == b"\0given\xc0\xdb"
    script = Command(
        argv=("/bin/bash", "/proc/self/fd/3"),
        script=b"echo scripted",
        head_bytes=99,
        tail_bytes=99,
        cwd="/",
        timeout_s=30,
    )
    assert (await session.run(script)).output == b"scripted\n"


async def test_a_tree_is_dead_at_its_deadline(session: HelperSession) -> None:
    """Whatever it does against it; the next command runs."""
    ended = await session.run(command(TREE, timeout_s=0.5))
    assert ended.flags & EndFlag.TIMED_OUT
    left = await session.run(command("pgrep -c sleep || true"))
    assert left.output == b"0\n"


async def test_what_stays_in_the_background_is_killed(session: HelperSession) -> None:
    """It neither delays the end nor outlives it."""
    ended = await session.run(command("setsid sleep 1000 & echo done"))
    assert (ended.output, bool(ended.flags & EndFlag.BACKGROUND)) == (b"done\n", True)
    assert (await session.run(command("pgrep -c sleep || true"))).output == b"0\n"


async def test_it_survives_what_kills_all_it_can(session: HelperSession) -> None:
    """No signal from inside reaches PID 1."""
    await session.run(command("kill -9 -1; kill -STOP 1"))
    assert (await session.run(command("echo next"))).output == b"next\n"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("memory.events", "low 0\nhigh 0\nmax 9\noom 9\noom_kill {}\noom_group_kill 0\n"),
        ("memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill {}\n"),
    ],
    ids=["cgroup v2", "cgroup v1"],
)
async def test_kills_for_memory_are_read_from_either_cgroup(file: str, text: str) -> None:
    """The kernel's count when the command ends less that when it began."""
    path = f"/sys/fs/cgroup/{file}"
    prepare = "mount -t tmpfs none /sys/fs/cgroup\nmkdir -p /sys/fs/cgroup/memory\n"
    prepare += f"printf '{text.format(3)}' > {path}"
    async with serving(platform.machine(), prepare=prepare) as session:
        ended = await session.run(command(f"printf '{text.format(5)}' > {path}"))
        assert (ended.oom_kills, bool(ended.flags & EndFlag.OOM_UNKNOWN)) == (2, False)
        assert (await session.run(command("true"))).oom_kills == 0


async def test_a_cgroup_that_cannot_be_read_is_told() -> None:
    """Then the engine is asked instead."""
    prepare = "mount -t tmpfs none /sys/fs/cgroup"
    async with serving(platform.machine(), prepare=prepare) as session:
        assert (await session.run(command("true"))).flags & EndFlag.OOM_UNKNOWN
