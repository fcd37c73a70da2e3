"""Simulated environments: time, limits, death."""

from __future__ import annotations

import asyncio

import pytest

from agentflow.errors import EnvDied
from agentflow.sim.clock import run_virtual
from agentflow.sim.environment import EnvLimits, SimulatedEnv, SimulatedEnvBuilder
from agentflow.types import ContainerSpec

SPEC = ContainerSpec()


def builder(**limits: float) -> SimulatedEnvBuilder:
    """Return a builder whose starts take ten seconds."""
    return SimulatedEnvBuilder(lambda _: 10.0, limits=EnvLimits(**limits))  # type: ignore[arg-type]


async def start_at(envs: SimulatedEnvBuilder, times: list[float]) -> SimulatedEnv:
    """Start one and note when it is up."""
    env = await envs.start(SPEC)
    times.append(asyncio.get_running_loop().time())
    return env


def test_starts_wait_for_a_start_slot() -> None:
    """Three starts, two at once: at 10, 10 and 20."""

    async def main() -> list[float]:
        envs, times = builder(starts=2), list[float]()
        await asyncio.gather(*(start_at(envs, times) for _ in range(3)))
        return times

    assert run_virtual(main()) == [10, 10, 20]


def test_a_container_is_free_when_its_environment_was_stopped() -> None:
    """With one container the second start begins when the first is stopped at 15."""

    async def main() -> list[float]:
        envs, times = builder(containers=1), list[float]()

        async def live() -> None:
            env = await start_at(envs, times)
            await env.execute("sleep 5")
            await env.stop()
            await env.stop()

        await asyncio.gather(live(), live())
        assert (envs.most_live, envs.live) == (1, {})
        return times

    assert run_virtual(main()) == [10, 25]


def test_starts_slow_each_other_down() -> None:
    """With a growth of 0.5 the second of two takes 15 s."""

    async def main() -> list[float]:
        envs, times = builder(start_growth=0.5), list[float]()
        await asyncio.gather(*(start_at(envs, times) for _ in range(2)))
        return times

    assert run_virtual(main()) == [10, 15]


def test_a_cancelled_start_gives_its_container_back() -> None:
    """The next start is not blocked by it."""

    async def main() -> float:
        envs = builder(containers=1)
        start = asyncio.ensure_future(envs.start(SPEC))
        await asyncio.sleep(3)
        start.cancel()
        await asyncio.wait([start])
        await envs.start(SPEC)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 13


def test_a_command_takes_its_time_or_its_deadline() -> None:
    """A time-out is a result."""

    async def main() -> list[tuple[int, bool, float]]:
        env = await builder().start(SPEC)
        results = [
            await env.execute("sleep 2.5", timeout_s=10),
            await env.execute("sleep inf", timeout_s=10),
        ]
        return [(r.exit_code, r.timed_out, r.duration_s) for r in results]

    assert run_virtual(main()) == [(0, False, 2.5), (-1, True, 10)]


def test_death_ends_the_running_command_and_every_later_one() -> None:
    """Both raise EnvDied; stopping still works and gives the container back."""

    async def main() -> float:
        envs = builder(containers=1)
        env = await envs.start(SPEC)
        async with asyncio.TaskGroup() as group:
            group.create_task(expect_death(env))
            await asyncio.sleep(4)
            env.kill()
        died = asyncio.get_running_loop().time()
        await expect_death(env)
        await env.stop()
        assert envs.live == {}
        return died

    async def expect_death(env: SimulatedEnv) -> None:
        with pytest.raises(EnvDied):
            await env.execute("sleep 100")

    assert run_virtual(main()) == 14


def test_files_are_kept_and_bounded() -> None:
    """What was written is read; too much of it, or nothing, is an error."""

    async def main() -> bytes:
        env = await builder().start(SPEC)
        await env.write_files({"a/b": b"text"})
        with pytest.raises(FileNotFoundError):
            await env.read_file("c", max_bytes=10)
        with pytest.raises(ValueError, match="4 bytes"):
            await env.read_file("/testbed/a/b", max_bytes=3)
        return await env.read_file("a/b", max_bytes=4)

    assert run_virtual(main()) == b"text"
