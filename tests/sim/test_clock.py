"""The virtual loop: time jumps, order is reproducible, what can never end is named."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from agentflow.sim.clock import Deadlock, VirtualRunner, run_virtual


def test_time_jumps_to_the_next_timer() -> None:
    """An hour of sleep passes at once and to the digit."""

    async def main() -> list[float]:
        runner = VirtualRunner()
        times = [runner.now()]
        for delay in (3600.0, 0.25):
            await asyncio.sleep(delay)
            times.append(runner.now())
        return times

    assert run_virtual(main()) == [0.0, 3600.0, 3600.25]


def test_timeouts_follow_virtual_time() -> None:
    """`asyncio.timeout` fires at its virtual deadline."""

    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.sleep(31)
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 30.0


def test_a_deadlock_is_raised_and_names_who_waits_where() -> None:
    """With nothing ready and no timer the loop names each waiting task and its coroutine."""

    async def starve(event: asyncio.Event) -> None:
        await event.wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(starve(asyncio.Event()), name="episode-7")

    with pytest.raises(Deadlock, match=r"2 tasks wait:.*episode-7 at Event\.wait:\d+"):
        run_virtual(main())


def test_tasks_cancel_in_the_order_of_their_birth() -> None:
    """A failing task group cancels its members in one order, whatever their addresses are."""

    async def member(number: int, seen: list[int]) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            seen.append(number)

    async def run_group(seen: list[int]) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(50):
                group.create_task(member(number, seen))
            await asyncio.sleep(1)
            raise ValueError("stop")

    async def main() -> list[int]:
        seen: list[int] = []
        with pytest.raises(ExceptionGroup):
            await run_group(seen)
        return seen

    assert run_virtual(main()) == list(range(50))


def test_to_thread_runs_inline_and_random_is_seeded_by_name() -> None:
    """Blocking work runs on the loop's own thread; a name and a seed fix a generator."""

    async def main() -> tuple[int, float, float]:
        runner = VirtualRunner(seed=3)
        ident = await runner.to_thread(threading.get_ident)
        return ident, runner.random("a").random(), runner.random("b").random()

    ident, a, b = run_virtual(main())
    assert ident == threading.get_ident()
    assert a != b
    assert VirtualRunner(seed=3).random("a").random() == a


def test_real_threads_are_refused() -> None:
    """Work that would end at a random virtual time is an error that says what to use."""

    async def main() -> None:
        await asyncio.to_thread(int)

    with pytest.raises(RuntimeError, match=r"Runner\.to_thread"):
        run_virtual(main())


_IMPORTS = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
"""Where the other process finds this module and the package."""


async def ended_in_order() -> str:
    """Names of tasks, in the order in which a set of them iterates."""
    tasks = [asyncio.ensure_future(asyncio.sleep(1, str(number))) for number in range(40)]
    done, _ = await asyncio.wait(tasks)
    return " ".join(task.result() for task in done)


def test_set_order_of_tasks_is_the_same_in_a_process_of_another_hash_seed() -> None:
    """`asyncio.wait` hands back its set in one order, whatever addresses the tasks have."""
    program = (
        "from test_clock import ended_in_order, run_virtual\nprint(run_virtual(ended_in_order()))\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": _IMPORTS},
        capture_output=True,
        check=True,
        text=True,
    )
    assert other.stdout.strip() == run_virtual(ended_in_order())
