"""The local environment keeps the contract, with bubblewrap and without, and its own promises."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from environment_contract import FOREVER_S, HOLD, EnvironmentContract, assert_dead
from local_tools import processes_in, run_directories, telling
from real_parts import missing

from agentflow.errors import ContainerKilled, EnvDied, EnvStartFailed
from agentflow.swe.environment import LocalEnv, LocalEnvBuilder
from agentflow.swe.environment.leftovers import MARK
from agentflow.swe.environment.sandbox import can_limit_tmpfs
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator


def content(path: Path) -> bytes | None:
    """Bytes of a file; None where there is none."""
    return path.read_bytes() if path.exists() else None


def building(scratch: Path, sandbox: str) -> Iterator[LocalEnvBuilder]:
    """Yield a builder whose directory and processes are gone when its tests are over."""
    builder = LocalEnvBuilder({"sandbox": sandbox, "scratch_dir": scratch})
    yield builder
    assert processes_in(scratch) == []
    assert run_directories(scratch)[0].joinpath("owner.lock").exists()
    assert sorted(path.name for path in run_directories(scratch)[0].iterdir()) == ["owner.lock"]
    asyncio.run(builder.close())
    assert run_directories(scratch) == []


@pytest.fixture(scope="module")
def unsandboxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEnvBuilder]:
    """A builder without a sandbox."""
    yield from building(tmp_path_factory.mktemp("none"), "none")


@pytest.fixture(scope="module")
def sandboxed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalEnvBuilder]:
    """A builder that insists on bubblewrap."""
    if shutil.which("bwrap") is None:
        missing("bubblewrap is not installed")
    yield from building(tmp_path_factory.mktemp("bubblewrap"), "bubblewrap")


@pytest.mark.slow
class TestNoSandbox(EnvironmentContract):
    """The contract without a sandbox."""

    @pytest.fixture
    def env_builder(self, unsandboxed: LocalEnvBuilder) -> LocalEnvBuilder:
        """A builder without a sandbox."""
        return unsandboxed

    async def test_a_killed_supervisor_takes_its_command_along(self, env: LocalEnv) -> None:
        """The end is told, nothing stays, and the next command runs."""
        result = await env.execute(HOLD + f"setsid sleep {FOREVER_S} & kill -KILL $PPID; sleep 60")
        assert (result.exit_code, "was killed" in result.text) == (137, True)
        await assert_dead(env)
        assert processes_in(env.root) == []

    async def test_killing_the_supervisors_parent_as_well_frees_nothing(
        self, env: LocalEnv
    ) -> None:
        """What loses worker and supervisor is found by its variable, or by its directory."""
        result = await env.execute(
            f"(cd /; setsid nohup sleep {FOREVER_S} &); env -i setsid sleep {FOREVER_S} &"
            "read -r _ _ _ parent _ < /proc/$PPID/stat; kill -KILL $parent $PPID; sleep 60"
        )
        assert (result.exit_code, "was killed" in result.text) == (137, True)
        assert processes_in(env.root) == telling("environ", env.root) == []
        assert (await env.execute(f"echo ${MARK}")).text == f"{env.root}\n"

    async def test_removing_the_environment_is_the_commands_doing(self, env: LocalEnv) -> None:
        """Its removal is told once as a kill by the policy, then as a death."""
        with pytest.raises(ContainerKilled):
            await env.execute("cd /; rm -rf ${TMPDIR%/tmp}")
        with pytest.raises(EnvDied):
            await env.execute("true")

    async def test_writing_into_a_removed_workdir(self, env: LocalEnv) -> None:
        """That too is told as the policy's doing."""
        await env.execute('rm -rf "$PWD"')
        with pytest.raises(ContainerKilled):
            await env.write_files({"f": b""})

    async def test_the_asked_for_workdir_is_a_name_for_the_real_one(self, env: LocalEnv) -> None:
        """Callers may say `/testbed` here as well."""
        await env.write_files({"f": b"1"}, root="/testbed/d")
        assert await env.read_file("/testbed/d/f", max_bytes=1) == b"1"
        assert (await env.execute("cat f", cwd="/testbed/d")).output == b"1"


class TestBubblewrap(EnvironmentContract):
    """The contract in bubblewrap."""

    @pytest.fixture
    def env_builder(self, sandboxed: LocalEnvBuilder) -> LocalEnvBuilder:
        """A builder that insists on bubblewrap."""
        return sandboxed

    async def test_workdir_is_where_it_was_asked_for(self, env: LocalEnv) -> None:
        """The repository's path is the specification's."""
        assert env.template_vars()["cwd"] == "/testbed"
        assert (await env.execute("pwd")).output == b"/testbed\n"

    @pytest.mark.parametrize(
        "path", ["/usr/x", "/etc/x", "/x", "/proc/sys/kernel/ostype", "/dev/x"]
    )
    async def test_the_system_is_read_only(self, env: LocalEnv, path: str) -> None:
        """Nothing but workdir, home and /tmp can be written."""
        before = content(Path(path))
        assert (await env.execute(f"echo x > {path}")).exit_code != 0
        assert content(Path(path)) == before
        assert (await env.execute("touch w $HOME/w /tmp/w")).exit_code == 0

    @pytest.mark.parametrize(
        "trick",
        [
            "bash -c",
            "unshare -Urm bash -c 'mount -o remount,bind,rw /proc/sys; eval \"$0\"'",
            "unshare -Urm bash -c 'umount /proc/sys; eval \"$0\"'",
            "unshare -Urmpf bash -c 'mount -t proc proc /proc; eval \"$0\"'",
        ],
    )
    async def test_kernel_settings_cannot_be_written(self, env: LocalEnv, trick: str) -> None:
        """No write permission is had on them, not in namespaces of one's own either."""
        result = await env.execute(f"{trick} 'test -w /proc/sys/kernel/core_pattern; echo $?'")
        assert "0" not in result.text.splitlines()
        assert result.output

    async def test_the_machine_is_not_seen(self, env: LocalEnv, tmp_path: Path) -> None:
        """Neither other files, nor other processes, nor a network, nor capabilities."""
        (tmp_path / "secret").write_text("secret")
        seen = await env.execute(
            f"ls {tmp_path} {env.root.parent} {Path.home()} 2>/dev/null"
            " | grep -E 'secret|agentflow|bashrc';"
            "ls -d /proc/[0-9]* | wc -l; wc -l < /proc/net/route; grep CapEff /proc/self/status"
        )
        count, routes, caps = seen.text.splitlines()
        assert int(count) < 8
        assert int(routes) == 1
        assert caps.split()[1].strip("0") == ""

    async def test_the_owner_cannot_be_killed(self, env: LocalEnv) -> None:
        """`kill -9 -1` ends the command alone."""
        result = await env.execute("(sleep 60 &); kill -KILL -1; echo sent")
        assert result.output == b"sent\n"
        assert (await env.execute("echo next")).output == b"next\n"

    async def test_links_to_the_sandbox_lead_nowhere_outside(
        self, env: LocalEnv, tmp_path: Path
    ) -> None:
        """Writing through a planted folder link is refused and writes nothing."""
        (tmp_path / "target").mkdir()
        await env.execute(f"ln -s {tmp_path}/target dir", check=True)
        with pytest.raises(ValueError, match="dir/f"):
            await env.write_files({"dir/f": b"x"})
        assert list((tmp_path / "target").iterdir()) == []

    async def test_only_own_directories_are_read(self, env: LocalEnv) -> None:
        """The system's files are not the environment's."""
        with pytest.raises(ValueError, match="not inside"):
            await env.read_file("/etc/passwd", max_bytes=1 << 20)
        await env.execute("echo 1 > /tmp/f; echo 2 > ~/f")
        assert await env.read_file("/tmp/f", max_bytes=9) == b"1\n"
        assert await env.read_file(f"{env.template_vars()['home']}/f", max_bytes=9) == b"2\n"

    @pytest.mark.parametrize("workdir", ["/", "/usr", "relative", "/a/../usr"])
    async def test_a_workdir_that_hides_the_system(
        self, env_builder: LocalEnvBuilder, workdir: str
    ) -> None:
        """Such a path is refused by name."""
        with pytest.raises(EnvStartFailed, match="workdir"):
            await env_builder.start(ContainerSpec(workdir=workdir))

    async def test_a_workdir_that_cannot_be_made(self, env_builder: LocalEnvBuilder) -> None:
        """A missing path below the read-only system fails the start and leaves nothing."""
        with pytest.raises(EnvStartFailed, match="bwrap"):
            await env_builder.start(ContainerSpec(workdir="/usr/nowhere/repo"))


async def test_a_memory_limit_binds_shared_memory(
    sandboxed: LocalEnvBuilder, tmp_path: Path
) -> None:
    """Files in /dev/shm are memory that no process has mapped; /dev itself takes none."""
    fake = tmp_path / "bwrap"
    fake.write_text("#!/bin/sh\necho '    --tmpfs DEST'\n")
    fake.chmod(0o755)
    assert not can_limit_tmpfs(str(fake))
    if not can_limit_tmpfs("bwrap"):
        pytest.skip("bubblewrap is older than 0.7")
    limited = LocalEnvBuilder(
        {"sandbox": "bubblewrap", "scratch_dir": tmp_path / "s", "memory_limit_bytes": 64 << 20}
    )
    async with await limited.start(ContainerSpec()) as env:
        result = await env.execute("head -c 70000000 /dev/zero > /dev/shm/x; stat -c %s /dev/shm/x")
    await limited.close()
    assert result.text.splitlines()[-1] == str(64 << 20)


async def test_a_hidden_folder_is_empty_and_takes_nothing(tmp_path: Path) -> None:
    """It would else be memory without a limit."""
    if shutil.which("bwrap") is None:
        missing("bubblewrap is not installed")
    builder = LocalEnvBuilder(
        {"sandbox": "bubblewrap", "scratch_dir": tmp_path, "hidden_paths": ["/usr/share"]}
    )
    async with await builder.start(ContainerSpec()) as env:
        result = await env.execute("ls -A /usr/share; touch /usr/share/x")
    await builder.close()
    assert (result.exit_code, result.text.count("\n")) == (1, 1)
    assert "Read-only" in result.text
