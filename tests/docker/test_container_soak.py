"""Many episodes with random kills: each ends once, with the right cause, and nothing is left.

`AGENTFLOW_SOAK_EPISODES` says how many (50; `make soak` takes 200), `AGENTFLOW_SOAK_SEED` which.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from enum import StrEnum
from typing import TYPE_CHECKING

import pytest
from docker_tools import ROOT, kill_engine, our_containers, start_engine

from agentflow.errors import EnvDied, EnvStartFailed
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.swe.environment.docker.errors import ContainerDied, EngineUnavailable
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from agentflow.swe.environment.docker import DockerEnv

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

EPISODES = int(os.environ.get("AGENTFLOW_SOAK_EPISODES", "50"))
SEED = int(os.environ.get("AGENTFLOW_SOAK_SEED", "1"))
AT_ONCE = 8
COMMANDS = 6
ENGINE_KILL_EVERY = 25
OWNER_KILL_EVERY = 10
SMALL = {"pids": 64, "memory_bytes": 48 << 20, "timeout_s": 60, "max_live": AT_ONCE}


class Fate(StrEnum):
    """What happens to an episode, once, at one of its commands."""

    NOTHING = "nothing"
    KILLED = "the container is killed from outside"
    REMOVED = "the container is removed from outside"
    KILL_ALL = "a command kills all it can"
    MEMORY = "a command takes all memory"
    BOMB = "a command forks without end"
    TIMEOUT = "a command hangs with its tree"
    CANCELLED = "the episode is cancelled in the middle of a command"


async def docker_patiently(*arguments: str) -> None:
    """Run a docker command, again and again while the engine is away."""
    done = asyncio.subprocess.DEVNULL
    while True:
        process = await asyncio.create_subprocess_exec(
            "docker", *arguments, stdout=done, stderr=done
        )
        if await process.wait() == 0:
            return
        await asyncio.sleep(0.1)


async def strike(env: DockerEnv, fate: Fate) -> str:  # noqa: PLR0911  # one for each fate
    """Let the fate happen; returns what is wrong, "" for nothing."""
    match fate:
        case Fate.NOTHING:
            return ""
        case Fate.KILLED | Fate.REMOVED:
            verb = ("kill",) if fate is Fate.KILLED else ("rm", "-f")
            async with asyncio.TaskGroup() as group:
                hanging = group.create_task(expect_death(env))
                await asyncio.sleep(0)
                await docker_patiently(*verb, env.name)
            return hanging.result()
        case Fate.KILL_ALL:
            await env.execute("kill -9 -1")
            return ""
        case Fate.MEMORY:
            result = await env.execute("tail /dev/zero")
            return "" if result.out_of_memory else f"not out of memory: {result}"
        case Fate.BOMB:
            await env.execute("b() { b | b & }; b; sleep 60", timeout_s=0.5)
            return ""
        case Fate.TIMEOUT:
            result = await env.execute("setsid sleep 1000 & sleep 1000", timeout_s=0.2)
            return "" if result.timed_out else f"no time-out: {result}"
        case Fate.CANCELLED:
            hanging = asyncio.ensure_future(env.execute("sleep 1000", timeout_s=900))
            await asyncio.sleep(0)
            hanging.cancel()
            await asyncio.wait({hanging})
            return "" if hanging.cancelled() else "the cancellation was swallowed"


async def expect_death(env: DockerEnv) -> str:
    """Hang in a command until the container dies."""
    try:
        result = await env.execute("sleep 1000", timeout_s=900)
    except ContainerDied:
        return ""
    return f"a dead container gave {result}"


async def episode(builder: DockerEnvBuilder, number: int) -> str:
    """Run one; returns what was wrong, "" for nothing."""
    chance = random.Random(f"{SEED}/{number}")
    fate, when = chance.choice(list(Fate)), chance.randrange(COMMANDS)
    try:
        env = await builder.start(ContainerSpec(labels={"episode": str(number)}))
    except EngineUnavailable:
        return ""  # the engine was being restarted
    except EnvStartFailed as error:
        return "" if "engine" in str(error) or "connection" in str(error) else f"start: {error}"
    try:
        for step in range(COMMANDS):
            if step == when and (wrong := await strike(env, fate)):
                return f"{fate}: {wrong}"
            result = await env.execute(f"echo {step} >> steps; cat steps")
            if result.output != b"".join(b"%d\n" % i for i in range(step + 1)):
                return f"{fate}: step {step} gave {result}"
    except EnvDied as error:
        return "" if fate in {Fate.KILLED, Fate.REMOVED} else f"{fate}: {error!r}"
    else:
        return "a dead container went on" if fate in {Fate.KILLED, Fate.REMOVED} else ""
    finally:
        await env.stop()


OWNER = """
import asyncio
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.types import ContainerSpec

async def main():
    builder = DockerEnvBuilder({"pids": 64, "memory_bytes": 48 << 20})
    print("begun", flush=True)
    while True:
        env = await builder.start(ContainerSpec())
        print("started", flush=True)
        await env.execute("echo x")

asyncio.run(main())
"""


def kill_an_owner(chance: random.Random) -> None:
    """Start a process that makes containers, and kill it at a moment of chance."""
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        out.readline()
        try:
            process.wait(timeout=chance.uniform(0, 2))
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


async def disturb(done: asyncio.Queue[int]) -> None:
    """Kill the engine and other owners now and then, as episodes end."""
    chance = random.Random(f"{SEED}/disturb")
    for ended in range(1, EPISODES + 1):
        await done.get()
        if ended % OWNER_KILL_EVERY == 0:
            await asyncio.to_thread(kill_an_owner, chance)
        if ended % ENGINE_KILL_EVERY == ENGINE_KILL_EVERY // 2:
            await asyncio.to_thread(kill_engine)
            await asyncio.to_thread(start_engine)


async def test_random_kills() -> None:
    """Every episode ends with the right cause; afterwards no container of ours is there."""
    builder = DockerEnvBuilder(SMALL)
    numbers = iter(range(EPISODES))
    done: asyncio.Queue[int] = asyncio.Queue()
    wrong: dict[int, str] = {}

    async def work() -> None:
        for number in numbers:
            wrong[number] = await episode(builder, number)
            done.put_nowait(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(disturb(done))
        for _ in range(AT_ONCE):
            group.create_task(work())
    await builder.close()
    await clean()
    assert {number: what for number, what in wrong.items() if what} == {}
    assert len(wrong) == EPISODES
    assert our_containers() == []
