"""The builder of local environments: its configuration, its failures, and what it leaves."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from environment_contract import until_there
from local_tools import run_directories, telling
from real_parts import missing

from agentflow.errors import ConfigError, EnvDied, EnvStartFailed
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment import LocalEnvBuilder
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Where environments of this test live."""
    return tmp_path / "scratch"


@pytest.fixture
async def plain(scratch: Path) -> AsyncIterator[LocalEnvBuilder]:
    """A builder without a sandbox that keeps little output."""
    builder = LocalEnvBuilder(
        {
            "sandbox": "none",
            "scratch_dir": scratch,
            "output_head_bytes": 10,
            "output_tail_bytes": 5,
            "timeout_s": 0.3,
            "memory_limit_bytes": 1 << 30,
            "env": {"A": "1", "B": "1"},
        }
    )
    yield builder
    await builder.close()


async def test_configuration_is_kept(plain: LocalEnvBuilder) -> None:
    """Limits of output, time and memory and the variables are those configured."""
    async with await plain.start(ContainerSpec(env={"B": "2"})) as env:
        cut = await env.execute("echo -n 0123456789abcdefghij")
        assert (cut.output, cut.dropped_bytes) == (b"0123456789fghij", 5)
        assert (await env.execute("sleep 100")).timed_out
        assert (await env.execute("ulimit -v; ulimit -c")).output == b"1048576\n0\n"
        assert (await env.execute("echo $A$B$C", env={"C": "3"})).output == b"123\n"


async def test_one_warning_without_a_sandbox(
    plain: LocalEnvBuilder, caplog: pytest.LogCaptureFixture
) -> None:
    """However many environments start, it is said once that there is no sandbox."""
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            async with await plain.start(ContainerSpec()):
                pass
    assert ["WITHOUT A SANDBOX" in text for text in caplog.messages] == [True]


async def test_auto_falls_back_where_bubblewrap_is_missing(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without bwrap on PATH, `auto` warns and runs, `bubblewrap` says what to install."""
    (tmp_path / "bin").mkdir()
    for tool in ("bash", "true"):
        (tmp_path / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    auto = LocalEnvBuilder({"scratch_dir": scratch})
    strict = LocalEnvBuilder({"scratch_dir": scratch, "sandbox": "bubblewrap"})
    async with await auto.start(ContainerSpec()) as env:
        assert env.template_vars()["sandbox"] == "none"
    with pytest.raises(EnvStartFailed, match="apt-get install bubblewrap"):
        await strict.start(ContainerSpec())
    await auto.close()
    await strict.close()
    assert "not installed" in caplog.text


async def test_a_bubblewrap_that_does_not_work(
    scratch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is tried by running it; what it said is in the error."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho no namespaces here >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    builder = LocalEnvBuilder({"scratch_dir": scratch, "sandbox": "bubblewrap"})
    with pytest.raises(EnvStartFailed, match="no namespaces here"):
        await builder.start(ContainerSpec())
    await builder.close()
    assert run_directories(scratch) == []


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"sandbx": "none"}, "sandbx"),
        ({"timeout_s": 0}, r"timeout_s: .* \(got 0\)"),
        ({"sandbox": "docker"}, r"sandbox: .* \(got 'docker'\)"),
        ({"output_head_bytes": -1}, r"output_head_bytes: .* \(got -1\)"),
    ],
)
def test_a_bad_section_is_named(section: dict[str, object], told: str) -> None:
    """Field and value of bad configuration are in the error."""
    with pytest.raises(ConfigError, match=told):
        LocalEnvBuilder(section)


async def test_a_limit_that_cannot_be_kept_is_refused(scratch: Path) -> None:
    """A process limit without a sandbox would be no limit."""
    builder = LocalEnvBuilder({"sandbox": "none", "scratch_dir": scratch, "pids_limit": 50})
    with pytest.raises(ConfigError, match="pids_limit"):
        await builder.start(ContainerSpec())
    await builder.close()


async def test_a_scratch_directory_that_cannot_be_written(tmp_path: Path) -> None:
    """The failed start names it."""
    (tmp_path / "file").write_text("")
    builder = LocalEnvBuilder({"scratch_dir": tmp_path / "file" / "below"})
    with pytest.raises(EnvStartFailed, match=f"{tmp_path}/file/below.*must be writable"):
        await builder.start(ContainerSpec())
    await builder.close()


@pytest.fixture
def disk_options() -> str:
    """Size of the tiny disk."""
    return "size=64k"


@pytest.fixture
def tiny_disk(tmp_path: Path, disk_options: str) -> Iterator[Path]:
    """A file system with next to no room."""
    path = tmp_path / "tiny"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", disk_options, "tmpfs", path]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting needs root")
    yield path
    subprocess.run(["umount", path], check=True)


async def test_a_full_disk(tiny_disk: Path) -> None:
    """Writing fails as the machine's fault, leaves no half file; reading and ending still work."""
    builder = LocalEnvBuilder({"sandbox": "none", "scratch_dir": tiny_disk})
    env = await builder.start(ContainerSpec())
    with pytest.raises(EnvDied, match="No space left"):
        await env.write_files({"big": bytes(1 << 20)})
    listing = await env.execute("ls -A; head -c 100000 /dev/zero > fill")
    assert listing.text.splitlines()[0].startswith("head: ")
    assert listing.exit_code == 1
    await env.stop()
    await builder.close()
    assert run_directories(tiny_disk) == []


@pytest.mark.parametrize("disk_options", [f"size=64k,nr_inodes={count}" for count in (1, 3, 6)])
async def test_starting_on_a_full_disk(tiny_disk: Path) -> None:
    """The failed start names the directory and leaves nothing in it."""
    builder = LocalEnvBuilder({"sandbox": "none", "scratch_dir": tiny_disk})
    with pytest.raises(EnvStartFailed, match=f"{tiny_disk}.*No space left"):
        await builder.start(ContainerSpec())
    await builder.close()
    assert run_directories(tiny_disk) == []


@pytest.mark.slow
async def test_what_commands_leave_is_removed(plain: LocalEnvBuilder) -> None:
    """Read-only, unreadable, deep and oddly named things do not stay behind."""
    env = await plain.start(ContainerSpec())
    made = await env.execute(
        "mkdir -p ro/in no/in; touch ro/in/f; ln -s / root; mkfifo fifo; touch $'new\\nline';"
        "touch -- -rf;"
        "chmod -R a-w ro; chmod 000 no/in no;"
        'python -c \'import os\nfor i in range(1100): os.mkdir("d"); os.chdir("d")\'',
        timeout_s=60,
    )
    assert made.exit_code == 0, made.text
    await env.stop()
    assert not env.root.exists()


async def test_a_swapped_root_is_not_followed(plain: LocalEnvBuilder, tmp_path: Path) -> None:
    """A link planted in the environment's own place does not lead the removal astray."""
    (tmp_path / "precious").mkdir(mode=0o755)
    (tmp_path / "precious" / "file").write_text("kept")
    env = await plain.start(ContainerSpec())
    shutil.rmtree(env.root)
    env.root.symlink_to(tmp_path / "precious")
    await env.stop()
    assert (tmp_path / "precious" / "file").read_text() == "kept"
    assert (tmp_path / "precious").stat().st_mode & 0o777 == 0o755
    assert not env.root.is_symlink()


async def test_a_given_runner_is_not_closed(scratch: Path) -> None:
    """Whoever brings a runner closes it."""
    runner = AsyncioRunner()
    builder = LocalEnvBuilder({"sandbox": "none", "scratch_dir": scratch}, runner=runner)
    async with await builder.start(ContainerSpec()):
        pass
    await builder.close()
    await builder.close()
    assert await runner.to_thread(lambda: 1) == 1
    runner.close()


class Holding(AsyncioRunner):
    """Holds its `nth` call in a thread until told to go on."""

    def __init__(self, nth: int) -> None:
        super().__init__()
        self._before = nth
        self.entered = asyncio.Event()
        self.go_on = threading.Event()

    async def to_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run it, some time."""
        self._before -= 1
        if self._before != -1:
            return await super().to_thread(fn, *args, **kwargs)
        self.entered.set()
        return await super().to_thread(lambda: self.go_on.wait() and fn(*args, **kwargs))


@pytest.mark.parametrize("nth", range(3))
async def test_a_cancelled_start_leaves_nothing(scratch: Path, nth: int) -> None:
    """Run directory, environment and supervisor are kept hold of while a thread makes them."""
    runner = Holding(nth)
    builder = LocalEnvBuilder({"sandbox": "none", "scratch_dir": scratch}, runner=runner)
    starting = asyncio.ensure_future(builder.start(ContainerSpec()))
    await runner.entered.wait()
    starting.cancel()
    done, _ = await asyncio.wait([starting], timeout=0.05)
    runner.go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert not done
    await builder.close()
    runner.close()
    assert run_directories(scratch) == []
    assert telling("cmdline", scratch) == []


async def test_a_killed_supervision_is_started_anew(plain: LocalEnvBuilder) -> None:
    """The death of the supervisor process ends no environment."""
    env = await plain.start(ContainerSpec())
    assert plain._supervision is not None
    process = plain._supervision._process
    assert process is not None
    process.kill()
    await asyncio.to_thread(process.wait)
    assert (await env.execute("echo next")).output == b"next\n"


OWNER = """
import asyncio, sys
from agentflow.swe.environment import LocalEnvBuilder
from agentflow.types import ContainerSpec

async def main():
    builder = LocalEnvBuilder({"sandbox": sys.argv[1], "scratch_dir": sys.argv[2]})
    env = await builder.start(ContainerSpec())
    print(env.root, flush=True)
    await env.execute("setsid sleep 1000 & (nohup sleep 1000 &); echo up > up; sleep 1000")

asyncio.run(main())
"""


@pytest.mark.parametrize("sandbox", ["none", "bubblewrap"])
@pytest.mark.slow
async def test_no_process_outlives_a_killed_owner(scratch: Path, sandbox: str) -> None:
    """After `kill -9` of the owner its processes end and its directory is removed."""
    if sandbox == "bubblewrap" and shutil.which("bwrap") is None:
        missing("bubblewrap is not installed")
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, sandbox, scratch, stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    root = Path((await owner.stdout.readline()).decode().strip())
    live = LocalEnvBuilder({"sandbox": "none", "scratch_dir": scratch})
    env = await live.start(ContainerSpec())
    await until_there(env, str(root / "work" / "up"))
    assert root.parent in run_directories(scratch), "a live owner's directory was swept"
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    watch = f"while ls -l /proc/[0-9]*/cwd 2>/dev/null | grep -q {root}; do sleep 0.2; done"
    assert not (await env.execute(watch, timeout_s=20)).timed_out
    watch = f"while test -e {root.parent}; do sleep 0.05; done"
    assert not (await env.execute(watch, timeout_s=20)).timed_out
    await env.stop()
    await live.close()
    assert run_directories(scratch) == []


async def test_a_directory_without_owner_is_swept(scratch: Path) -> None:
    """What owner and supervisor left, killed together, the next builder removes."""
    dead = scratch / "agentflow-local-1-dead"
    (dead / "env-1" / "work").mkdir(parents=True)
    (dead / "owner.lock").touch()
    successor = LocalEnvBuilder({"sandbox": "none", "scratch_dir": scratch})
    async with await successor.start(ContainerSpec()):
        assert dead not in run_directories(scratch)
    await successor.close()
    assert run_directories(scratch) == []
