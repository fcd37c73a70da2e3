"""An engine that is killed and comes back, or does not: what becomes of commands meanwhile."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from docker_tools import PATIENCE_S, docker, engine_event

from agentflow.errors import EpisodeError
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.swe.environment.docker.errors import EngineGone
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mortal_engine import MortalEngine

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("mortal", "nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}


@pytest.fixture
async def builder(mortal: MortalEngine) -> AsyncIterator[DockerEnvBuilder]:
    """A builder of small containers."""
    builder = DockerEnvBuilder(SMALL)
    yield builder
    await builder.close()


async def test_a_command_survives_a_restart_of_the_engine(
    builder: DockerEnvBuilder, mortal: MortalEngine
) -> None:
    """The command in flight runs on, and its end is fetched over a new connection."""
    env = await builder.start(ContainerSpec())
    await env.execute("mkfifo up go")
    async with asyncio.TaskGroup() as group:  # its tasks begin in this order
        command = group.create_task(env.execute("echo > up; read < go; echo whole; exit 9"))
        await group.create_task(env.execute("read < up"))
        await asyncio.to_thread(mortal.restart)
        await env.execute("echo > go")
    assert (command.result().exit_code, command.result().output) == (9, b"whole\n")
    assert (await env.execute("echo next")).output == b"next\n"
    await env.stop()


@contextmanager
def watched(container: str, program: str) -> Iterator[int]:
    """Yield a descriptor of the container's process of this program, as this machine sees it."""
    processes = map(str.split, docker("top", container, "-o", "pid,args").splitlines())
    (pid,) = (fields[0] for fields in processes if fields[1] == program)
    process = os.pidfd_open(int(pid))
    yield process
    os.close(process)


async def test_a_command_that_ends_while_the_engine_is_away(
    builder: DockerEnvBuilder, mortal: MortalEngine
) -> None:
    """Its end is kept by the helper until somebody asks."""
    env = await builder.start(ContainerSpec())
    await env.execute("mkfifo up")
    async with asyncio.TaskGroup() as group:  # its tasks begin in this order
        script = "sleep 1000 & echo > up; wait $!; seq 20000; exit 4"
        command = group.create_task(env.execute(script))
        await group.create_task(env.execute("read < up"))
        with watched(env.name, "/bin/bash") as shell, watched(env.name, "sleep") as sleeping:
            await asyncio.to_thread(mortal.kill)
            signal.pidfd_send_signal(sleeping, signal.SIGTERM)
            ended, _, _ = await asyncio.to_thread(select.select, [shell], [], [], PATIENCE_S)
        assert ended
        await asyncio.to_thread(mortal.start)
    assert command.result().exit_code == 4
    assert command.result().output.endswith(b"".join(b"%d\n" % i for i in range(1, 20001)))
    await env.stop()


async def test_a_command_beside_another_is_not_told_as_killed(
    builder: DockerEnvBuilder, mortal: MortalEngine
) -> None:
    """The engine takes its session along, which is no doing of the policy's."""
    env = await builder.start(ContainerSpec())
    await env.execute("mkfifo up")
    first = asyncio.ensure_future(env.execute("sleep 1000", timeout_s=900))
    beside = asyncio.ensure_future(env.execute("echo > up; sleep 1000", timeout_s=900))
    await env.execute("read < up")
    await asyncio.to_thread(mortal.restart)
    with pytest.raises(EngineGone, match="went away under a command"):
        await beside
    await env.stop()
    with pytest.raises(EpisodeError):
        await first


async def test_a_paused_environment_survives_a_restart_of_the_engine(mortal: MortalEngine) -> None:
    """Its next command comes while the engine is away, and thaws it when there is one again."""
    builder = DockerEnvBuilder({**SMALL, "pause_after_s": 0.1})
    env = await builder.start(ContainerSpec())
    await engine_event(env.name, "pause")
    await builder._nursery.wait()  # which the pause is part of
    mortal.kill()
    async with asyncio.TaskGroup() as group:  # its tasks begin in this order
        command = group.create_task(env.execute("echo thawed"))
        group.create_task(asyncio.to_thread(mortal.start))
    assert command.result().output == b"thawed\n"
    await env.stop()
    await builder.close()


async def test_an_engine_that_stays_away_is_told(mortal: MortalEngine) -> None:
    """After `reconnect_s` the episode ends, and says that it was the engine."""
    builder = DockerEnvBuilder({**SMALL, "reconnect_s": 0.2})
    env = await builder.start(ContainerSpec())
    try:
        mortal.kill()
        with pytest.raises(EngineGone, match="no engine"):
            await env.execute("true")
    finally:
        mortal.start()
    await env.stop()
    await builder.close()
