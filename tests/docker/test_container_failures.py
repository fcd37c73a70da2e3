"""Failures are told apart, each with the phase it happened in and whose doing it was."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker

from agentflow.errors import ConfigError, ContainerKilled, EnvDied, EnvStartFailed
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.swe.environment.docker.container import verdict
from agentflow.swe.environment.docker.engine import ContainerState
from agentflow.swe.environment.docker.errors import (
    ContainerDied,
    EngineUnavailable,
    ImageMissing,
    StartTimedOut,
)
from agentflow.types import Blame, Cause, ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}


@pytest.fixture
async def builder() -> AsyncIterator[DockerEnvBuilder]:
    """A builder of small containers."""
    builder = DockerEnvBuilder(SMALL)
    yield builder
    await builder.close()


async def started(builder: DockerEnvBuilder) -> tuple[str, asyncio.Task[object]]:
    """Start an environment with a command that is surely running; returns name and command."""
    env = await builder.start(ContainerSpec())
    await env.execute("mkfifo up")
    command = asyncio.ensure_future(env.execute("echo > up; sleep 1000", timeout_s=900))
    assert not (await env.execute("read < up", timeout_s=20)).timed_out
    return env.name, command


# --- start ------------------------------------------------------------------------------------


async def test_a_missing_image_is_named(builder: DockerEnvBuilder) -> None:
    """The error says which image, and how to get it."""
    with pytest.raises(ImageMissing, match=r"agentflow-swe:none.*base_image") as caught:
        await builder.start(ContainerSpec(image="agentflow-swe:none"))
    assert (caught.value.ending().cause, caught.value.phase) == (Cause.ENV_START_FAILED, "start")


async def test_an_image_without_a_registry_is_missing() -> None:
    """A pull that fails, twice, is a missing image."""
    builder = DockerEnvBuilder({"pull": "missing"})
    with pytest.raises(ImageMissing, match=r"localhost:1/none"):
        await builder.start(ContainerSpec(image="localhost:1/none:latest"))
    await builder.close()


async def test_no_engine_is_told(tmp_path: Path) -> None:
    """Nobody listens at the address."""
    builder = DockerEnvBuilder({"docker_host": f"unix://{tmp_path}/none.sock"})
    with pytest.raises(EngineUnavailable, match=r"none\.sock"):
        await builder.start(ContainerSpec())
    await builder.close()


async def test_a_start_that_takes_too_long_leaves_nothing() -> None:
    """The container that comes up after all is removed."""
    builder = DockerEnvBuilder({**SMALL, "start_timeout_s": 0.01})
    with pytest.raises(StartTimedOut, match=r"0\.01 s"):
        await builder.start(ContainerSpec())
    await builder.close()


async def test_siblings_start_while_one_times_out() -> None:
    """A start that hangs holds up no other and no other's commands."""
    slow = DockerEnvBuilder({**SMALL, "start_timeout_s": 0.01})
    builder = DockerEnvBuilder(SMALL)
    outcomes = await asyncio.gather(
        slow.start(ContainerSpec()), builder.start(ContainerSpec()), return_exceptions=True
    )
    assert isinstance(outcomes[0], StartTimedOut)
    assert not isinstance(outcomes[1], BaseException)
    assert (await outcomes[1].execute("true")).exit_code == 0
    await slow.close()
    await builder.close()


async def test_a_workdir_that_cannot_be_made_is_told(builder: DockerEnvBuilder) -> None:
    """A workdir that the user may not make is a failed start with a remedy."""
    with pytest.raises(EnvStartFailed, match=r"workdir '/no/such'.*writable"):
        await builder.start(ContainerSpec(workdir="/no/such"))


async def test_a_cancelled_start_leaves_nothing(builder: DockerEnvBuilder) -> None:
    """Cancelling twice, early, ends in no container."""
    start = asyncio.ensure_future(builder.start(ContainerSpec()))
    await asyncio.wait({start}, timeout=0)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert builder.gauges()["live"]["in_use"] <= 1
    await builder.close()
    assert builder.gauges()["live"]["in_use"] == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"memory": 1}, "memory: 1"),
        ({"session": "tmux"}, "session: 'tmux'"),
        ({"max_live": 0}, "max_live: 0"),
    ],
)
def test_bad_settings_are_named(settings: dict[str, object], message: str) -> None:
    """Unknown keys and bad values name the field and the value."""
    with pytest.raises(ConfigError, match=message):
        DockerEnvBuilder(settings)


def test_an_address_that_nothing_understands() -> None:
    """An ssh address says what to do instead."""
    with pytest.raises(ConfigError, match=r"ssh -L"):
        DockerEnvBuilder({"docker_host": "ssh://somewhere"})


# --- commands ---------------------------------------------------------------------------------


async def test_out_of_memory_is_seen(builder: DockerEnvBuilder) -> None:
    """The kernel's kill for memory is told from any other SIGKILL, and the next command runs."""
    async with await builder.start(ContainerSpec()) as env:
        bomb = await env.execute("python3 -c 'bytearray(1 << 30)'")
        assert (bomb.exit_code, bomb.out_of_memory) == (137, True)
        killed = await env.execute("kill -9 $$")
        assert (killed.exit_code, killed.out_of_memory) == (137, False)


async def test_a_child_out_of_memory_is_seen(builder: DockerEnvBuilder) -> None:
    """Also when the shell survives and ends well."""
    async with await builder.start(ContainerSpec()) as env:
        result = await env.execute("python3 -c 'bytearray(1 << 30)'; echo after; true")
        assert (result.exit_code, result.out_of_memory) == (0, True)


async def test_a_killed_container_ends_its_command(builder: DockerEnvBuilder) -> None:
    """A container killed from outside is the infrastructure's, at once and from then on."""
    name, command = await started(builder)
    docker("kill", name)
    with pytest.raises(ContainerDied, match="137") as caught:
        await command
    assert caught.value.cause.blame is Blame.INFRASTRUCTURE


async def test_a_removed_container_ends_its_command(builder: DockerEnvBuilder) -> None:
    """So is one that somebody removed."""
    name, command = await started(builder)
    docker("rm", "-f", name)
    with pytest.raises(ContainerDied, match=r"removed|137"):
        await command


async def test_a_dead_container_is_told_before_the_next_command(
    builder: DockerEnvBuilder,
) -> None:
    """A container that died while its episode waited for the GPU ends it at the next command."""
    env = await builder.start(ContainerSpec())
    await env.check_alive()
    docker("kill", env.name)
    with pytest.raises(EnvDied):
        await env.execute("true")
    with pytest.raises(EnvDied):
        await env.execute("true")
    await env.stop()


def test_a_container_killed_for_memory_is_the_policys() -> None:
    """When the kernel takes PID 1 itself, the verdict is the policy's."""
    state = ContainerState(
        id="x", running=False, paused=False, exit_code=137, out_of_memory=True, error=""
    )
    assert verdict("x", state).cause is Cause.OUT_OF_MEMORY


@pytest.mark.parametrize("command", ["kill -9 -1", "kill -9 1", "kill -STOP 1", "kill -TERM -1"])
async def test_the_agent_cannot_be_killed(builder: DockerEnvBuilder, command: str) -> None:
    """PID 1 takes no signal from inside; the session and the container survive."""
    async with await builder.start(ContainerSpec()) as env:
        await env.execute(command, timeout_s=20)
        assert (await env.execute("echo next")).output == b"next\n"


async def test_a_killed_side_helper_is_told(builder: DockerEnvBuilder) -> None:
    """A command beside another one that kills its own helper ends as killed, not run twice."""
    async with await builder.start(ContainerSpec()) as env:
        await env.execute("mkfifo go")
        async with asyncio.TaskGroup() as group:  # its tasks begin in this order
            group.create_task(env.execute("read < go", timeout_s=20))
            killer = "echo x >> ran; kill -9 $PPID; read < go"
            side = group.create_task(env.execute(killer, timeout_s=20))
            await side
            await env.execute("echo > go")
        assert side.result().exit_code == 137
        assert await env.read_file("ran", max_bytes=100) == b"x\n"


async def test_the_kernel_takes_commands_before_the_agent(builder: DockerEnvBuilder) -> None:
    """When memory runs out, every command is a better victim than the helper."""
    async with await builder.start(ContainerSpec()) as env:
        for _ in range(2):
            lowered = "until [ $(cat /proc/1/oom_score_adj) = 0 ]; do :; done"
            scores = await env.execute(f"{lowered}; cat /proc/self/oom_score_adj", timeout_s=20)
            assert scores.output == b"500\n"


async def test_the_agents_memory_is_closed(builder: DockerEnvBuilder) -> None:
    """A command of the same user reads neither the helper's memory nor its descriptors."""
    async with await builder.start(ContainerSpec()) as env:
        probe = "cat /proc/1/mem; ls -l /proc/1/fd/; cat /proc/1/environ; : > /proc/1/fd/11"
        result = await env.execute(probe)
        assert result.exit_code != 0
        assert result.text.count("Permission denied") >= 3


def test_reboot_is_the_policys_verdict() -> None:
    """What reboot(2) does to PID 1 is told from a kill from outside."""
    state = ContainerState(
        id="x", running=False, paused=False, exit_code=129, out_of_memory=False, error=""
    )
    assert isinstance(verdict("x", state), ContainerKilled)
