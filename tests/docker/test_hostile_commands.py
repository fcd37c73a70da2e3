"""What only containers promise: limits that hold, and a session that survives its commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentflow.swe.environment.docker import DockerEnvBuilder, wire
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.swe.environment.docker import DockerEnv

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 60}
GB = 1 << 30


async def building(workdir: str = "/testbed", **settings: object) -> AsyncIterator[DockerEnv]:
    """Yield an environment of a builder of its own."""
    builder = DockerEnvBuilder({**SMALL, **settings})
    async with await builder.start(ContainerSpec(workdir=workdir)) as env:
        yield env
    await builder.close()


@pytest.fixture
async def env() -> AsyncIterator[DockerEnv]:
    """A small container."""
    async for env in building():
        yield env


@pytest.fixture
async def root_env() -> AsyncIterator[DockerEnv]:
    """A container whose user may remove the system's files."""
    async for env in building("/work", user="0"):
        yield env


@pytest.fixture
async def keeping() -> AsyncIterator[DockerEnv]:
    """A container whose commands may leave children behind."""
    async for env in building(keep_background=True):
        yield env


async def assert_fine(env: DockerEnv) -> None:
    """Fail unless the next command runs as ever."""
    result = await env.execute("echo next")
    assert (result.exit_code, result.output) == (0, b"next\n")


async def test_a_gigabyte_of_output(env: DockerEnv) -> None:
    """Head and tail come back, and the helper's memory stays small."""
    result = await env.execute(f"echo first; head -c {GB} /dev/zero; echo last", timeout_s=120)
    assert (result.output[:6], result.output[-5:]) == (b"first\n", b"last\n")
    assert len(result.output) == env._config.output_head_bytes + env._config.output_tail_bytes
    assert len(result.output) + result.dropped_bytes == GB + 11
    peak = await env.execute("grep VmHWM /proc/1/status")
    assert int(peak.output.split()[1]) < 8 * 1024  # kB


async def test_a_line_a_microsecond(env: DockerEnv) -> None:
    """A million writes of one line each arrive whole and in order."""
    result = await env.execute("seq 1000000", timeout_s=60)
    assert result.output.startswith(b"1\n2\n3\n")
    assert result.output.endswith(b"\n999999\n1000000\n")
    assert len(result.output) + result.dropped_bytes == 6888896


async def test_real_frames_in_the_output_are_output(env: DockerEnv) -> None:
    """Frames that would parse, for this command and the next, are bytes like any other."""
    forged = b"".join(
        wire.frame(b"E" + n.to_bytes(4, "little") + b"\0" * 41) + wire.frame(b"H" + b"\1" * 12)
        for n in range(1, 50)
    )
    await env.write_files({"forged": forged})
    result = await env.execute("cat forged; exit 7")
    assert (result.exit_code, result.output) == (7, forged)
    await assert_fine(env)


async def test_a_memory_bomb(env: DockerEnv) -> None:
    """It dies for memory, the session does not."""
    for _ in range(3):
        result = await env.execute("tail /dev/zero")
        assert (result.exit_code, result.out_of_memory) == (137, True)
    await assert_fine(env)


async def test_memory_left_in_files_is_the_policys() -> None:
    """A tmpfs filled up to the memory limit ends commands, and says for want of what."""
    async for env in building(tmpfs={"/tmp": "size=1g,mode=1777"}):
        result = await env.execute("head -c 200M /dev/zero > /tmp/x")
        assert result.out_of_memory


async def test_a_full_tmpfs() -> None:
    """A full disk is the command's error; the next command runs, and files are refused."""
    async for env in building(tmpfs={"/testbed": "size=1m,uid=1000"}):
        result = await env.execute("head -c 2M /dev/zero > x")
        assert result.exit_code == 1
        assert b"No space left" in result.output
        await assert_fine(env)
        with pytest.raises(ValueError, match="No space left"):
            await env.write_files({"y": b"x" * 4096})


async def test_a_read_only_root() -> None:
    """Only what was named can be written; the helper is there all the same."""
    tmpfs = {"/tmp": "size=16m,mode=1777", "/testbed": "size=16m,uid=1000"}
    async for env in building(read_only=True, tmpfs=tmpfs, user="1000"):
        await env.write_files({"a": b"1"})
        result = await env.execute("cat a; touch /usr/x /etc/x /home/agent/x /.agentflow/x")
        assert result.output.count(b"Read-only file system") == 4
        await assert_fine(env)


PROCESSES = "all=(/proc/[0-9]*); echo ${#all[@]}"
"""Counts the container's processes without starting one."""


async def test_fork_bomb_in_the_background(env: DockerEnv) -> None:
    """A bomb that its command leaves fills the container to its limit, and ends with the command.

    It starts one process while there is room, and waits for the rest by builtins alone: a shell
    that must start a second one beside a bomb may fail to. The kernel says when the container is
    full: a count of /proc would take in processes that were never there at one time.
    """
    bomb = "b() { b | b & }; b > /dev/null 2>&1 &\n"
    folder = "pids=/sys/fs/cgroup; [ -e $pids/pids.max ] || pids+=/pids\n"
    full = "until read -r _ refused < $pids/pids.events; ((refused)); do :; done\n"
    result = await env.execute(f"{folder}{bomb}{full}read -r limit < $pids/pids.max; echo $limit")
    assert (result.exit_code, int(result.output)) == (0, SMALL["pids"])
    assert (await env.execute(PROCESSES)).output == b"2\n"  # the session, and the one that counts


async def test_children_that_fill_the_pids_limit(keeping: DockerEnv) -> None:
    """Idle children may stay where that is allowed, until a command has no room to start."""
    fill = "for i in {1..200}; do sleep 1000 >/dev/null 2>&1 & done 2>/dev/null; true"
    await keeping.execute(fill, timeout_s=2)
    await assert_fine(keeping)


async def test_background_children_that_may_stay(keeping: DockerEnv) -> None:
    """A child outlives its command, its later output is no one's, and it survives a time-out."""
    await keeping.execute("(while :; do echo noise; echo x >> alive; sleep 0.01; done) & true")
    grows = "tail -n 0 -f alive | head -n 1"
    assert (await keeping.execute(f"echo mine; {grows} > /dev/null")).output == b"mine\n"
    timed_out = await keeping.execute("setsid sleep 1000 & sleep 1000", timeout_s=0.2)
    assert timed_out.timed_out
    assert (await keeping.execute(grows)).output == b"x\n"
    assert (await keeping.execute("pgrep -fc '[s]leep 1000'")).output.strip() == b"0"


@pytest.mark.parametrize(
    "command",
    ["rm -f /bin/sh /usr/bin/env", "rm -rf /usr/bin/*utils* /usr/bin/ls; rm -f /etc/passwd"],
)
async def test_removed_programs(root_env: DockerEnv, command: str) -> None:
    """The session needs nothing of the image but the shell that commands name."""
    await root_env.execute(command)
    await assert_fine(root_env)
    await root_env.write_files({"a/b": b"1"})
    assert await root_env.read_file("a/b", max_bytes=1) == b"1"


async def test_a_removed_bash_is_told(root_env: DockerEnv) -> None:
    """Without bash commands end with 127 and say so; files still come out."""
    await root_env.execute("echo kept > f; rm -f /bin/bash")
    result = await root_env.execute("echo next")
    assert (result.exit_code, b"/bin/bash" in result.output) == (127, True)
    assert await root_env.read_file("f", max_bytes=100) == b"kept\n"


async def test_a_command_dies_on_time(env: DockerEnv) -> None:
    """The tree of a command that resists is dead within a fraction of a second."""
    tree = (
        "trap '' TERM; (setsid sleep 1000 &); nohup sleep 1000 & (sleep 1000 & sleep 1000) & wait"
    )
    result = await env.execute(tree, timeout_s=0.3)
    assert result.timed_out
    assert (await env.execute("pgrep -c sleep")).output.strip() == b"0"


async def test_no_network_and_no_capabilities(root_env: DockerEnv) -> None:
    """Even root has no device but the loopback and no capability, and cannot get one."""
    result = await root_env.execute(
        "tail -n +3 /proc/net/dev | cut -d: -f1; grep -E 'CapBnd|NoNewPrivs' /proc/self/status"
    )
    assert result.text.split() == ["lo", "CapBnd:", "0" * 16, "NoNewPrivs:", "1"]
