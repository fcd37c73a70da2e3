"""Many episodes with random kills: each ends once, with the right cause, and nothing is left.

`AGENTFLOW_SOAK_EPISODES` says how many (50; `make soak` takes 200), `AGENTFLOW_SOAK_SEED` which,
`AGENTFLOW_SOAK_EPISODE_S` how long one may take, `AGENTFLOW_SOAK_ENGINE_KILLS` after how many the
engine is killed again.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import pytest
from docker_tools import PATIENCE_S, ROOT, our_containers
from stacks import name_this_task, tell_stacks

from agentflow.errors import EnvStartFailed, EpisodeError
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.swe.environment.docker.errors import ContainerDied, EngineUnavailable
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from mortal_engine import MortalEngine

    from agentflow.swe.environment.docker import DockerEnv

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("mortal", "nothing_left")]

EPISODES = int(os.environ.get("AGENTFLOW_SOAK_EPISODES", "50"))
SEED = int(os.environ.get("AGENTFLOW_SOAK_SEED", "1"))
AT_ONCE = 8
COMMANDS = 6
ENGINE_KILL_EVERY = int(os.environ.get("AGENTFLOW_SOAK_ENGINE_KILLS", "25"))
OWNER_KILL_EVERY = 10
EPISODE_S = float(os.environ.get("AGENTFLOW_SOAK_EPISODE_S", "180"))
"""More than any episode takes: one that hangs is a fault."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What befalls containers from outside, on an engine that is killed now and then itself."""

    engine: MortalEngine
    up: asyncio.Event
    """Set while nobody is killing the engine."""

    async def restart_engine(self) -> None:
        """Kill the engine and bring it up again."""
        self.up.clear()
        await asyncio.to_thread(self.engine.restart)
        self.up.set()

    async def end(self, container: str, *verb: str) -> None:
        """Kill or remove a container; anew when the engine died over it."""
        while True:
            await self.up.wait()
            if (await self._docker("inspect", "-f", "{{.State.Running}}", container))[0] == "false":
                return
            _, error = await self._docker(*verb, container)
            if not error or "No such container" in error:
                return

    async def _docker(self, *arguments: str) -> tuple[str, str]:
        """Run the command line; returns what it printed, and what it complained of."""
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            "docker", *arguments, stdout=pipe, stderr=pipe
        )
        out, error = await process.communicate()
        return out.decode().strip(), error.decode().strip()


async def strike(  # noqa: PLR0911  # one for each fate
    env: DockerEnv, fate: Fate, outside: Outside
) -> str:
    """Let the fate happen; returns what is wrong, "" for nothing."""
    match fate:
        case Fate.NOTHING:
            return ""
        case Fate.KILLED | Fate.REMOVED:
            verb = ("kill",) if fate is Fate.KILLED else ("rm", "-f")
            async with asyncio.TaskGroup() as group:  # its tasks begin in this order
                hanging = group.create_task(expect_death(env))
                group.create_task(outside.end(env.name, *verb))
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
            await asyncio.wait({hanging}, timeout=0)
            hanging.cancel()
            await asyncio.wait({hanging})
            if hanging.cancelled():
                return ""
            return f"the cancellation was swallowed: {hanging.exception() or hanging.result()!r}"


async def expect_death(env: DockerEnv) -> str:
    """Hang in a command until the container dies."""
    try:
        result = await env.execute("sleep 1000", timeout_s=900)
    except ContainerDied:
        return ""
    return f"a dead container gave {result}"


async def episode(builder: DockerEnvBuilder, number: int, outside: Outside) -> str:
    """Run one; returns what was wrong, "" for nothing."""
    chance = random.Random(f"{SEED}/{number}")
    fate, when = chance.choice(list(Fate)), chance.randrange(COMMANDS)
    name_this_task(f"episode {number}: {fate}")
    try:
        env = await builder.start(ContainerSpec(labels={"episode": str(number)}))
    except EnvStartFailed as error:  # because the engine was being restarted
        told = isinstance(error, EngineUnavailable) or re.search("engine|connection", str(error))
        return "" if told else f"start: {error!r}"
    name_this_task(f"episode {number} in {env.name}: {fate}")
    try:
        for step in range(COMMANDS):
            if step == when and (wrong := await strike(env, fate, outside)):
                return f"{fate}: {wrong}"
            result = await env.execute(f"echo {step} >> steps; cat steps")
            if result.output != b"".join(b"%d\n" % i for i in range(step + 1)):
                return f"{fate}: step {step} gave {result}"
    except ContainerDied as error:
        return "" if fate in {Fate.KILLED, Fate.REMOVED} else f"{fate}: {error!r}"
    except EpisodeError as error:
        return f"{fate}: {error!r}"
    else:
        return "a dead container went on" if fate in {Fate.KILLED, Fate.REMOVED} else ""
    finally:
        await env.stop()


async def episode_in_time(builder: DockerEnvBuilder, number: int, outside: Outside) -> str:
    """Run one; an episode that hangs says what it waits for, and holds up no other."""
    hangs = asyncio.get_running_loop().call_later(EPISODE_S, tell_stacks, f"episode {number} hangs")
    try:
        async with asyncio.timeout(EPISODE_S):  # goes off after `hangs`, which was set first
            return await episode(builder, number, outside)
    except TimeoutError:
        return f"hung for {EPISODE_S:g} s; the stacks are in what the test printed"
    finally:
        hangs.cancel()


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


async def disturb(done: asyncio.Queue[int], outside: Outside) -> None:
    """Kill the engine and other owners now and then, as episodes end."""
    chance = random.Random(f"{SEED}/disturb")
    for ended in range(1, EPISODES + 1):
        await done.get()
        if ended % OWNER_KILL_EVERY == 0:
            await asyncio.to_thread(kill_an_owner, chance)
        if ended % ENGINE_KILL_EVERY == ENGINE_KILL_EVERY // 2:
            await outside.restart_engine()


async def test_random_kills(mortal: MortalEngine) -> None:
    """Every episode ends with the right cause; afterwards no container of ours is there."""
    outside = Outside(engine=mortal, up=asyncio.Event())
    outside.up.set()
    builder = DockerEnvBuilder(SMALL)
    numbers = iter(range(EPISODES))
    done: asyncio.Queue[int] = asyncio.Queue()
    wrong: dict[int, str] = {}

    async def work() -> None:
        for number in numbers:
            wrong[number] = await episode_in_time(builder, number, outside)
            done.put_nowait(number)

    async with asyncio.TaskGroup() as group:
        group.create_task(disturb(done, outside))
        for _ in range(AT_ONCE):
            group.create_task(work())
    await outside.restart_engine()  # ends what killed owners had asked of it: containers, later on
    async with asyncio.timeout(PATIENCE_S):
        await builder.close()
        await clean()
    faults = [f"episode {number}: {what}" for number, what in wrong.items() if what]
    assert not faults, "\n".join(faults)
    assert len(wrong) == EPISODES
    assert our_containers() == []
