"""The virtual loop: time jumps, order is reproducible, what can never end is named."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import cast

import pytest

from agentflow.sim.clock import Deadlock, VirtualLoop, VirtualRunner, run_virtual


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


@pytest.mark.slow
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


@pytest.mark.parametrize("at", [1e-300, 0.1 + 0.2, 1e8, 1e15, 1e300])
def test_a_timer_fires_at_its_time_to_the_digit_however_late(at: float) -> None:
    """Nothing is added up on the way, and no clock resolution comes between."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times: list[float] = []
        done = asyncio.Event()
        loop.call_at(at, lambda: times.append(loop.time()))
        loop.call_at(math.nextafter(at, math.inf), lambda: (times.append(loop.time()), done.set()))
        await done.wait()
        return times

    assert run_virtual(main()) == [at, math.nextafter(at, math.inf)]


def test_timers_of_one_time_fire_in_the_order_in_which_they_were_set() -> None:
    """Also when one that was set before is cancelled, and one in the past comes first."""

    async def main() -> list[int]:
        loop = asyncio.get_running_loop()
        seen: list[int] = []
        timers = [loop.call_at(5.0, seen.append, number) for number in range(20)]
        timers[3].cancel()
        loop.call_at(-7.0, seen.append, 99)
        await asyncio.sleep(5.0)
        return seen

    assert run_virtual(main()) == [99, *(n for n in range(20) if n != 3)]


def test_a_timer_at_infinity_is_a_deadlock_and_one_at_nan_an_error() -> None:
    """The first never comes, the second would come at any time."""

    async def for_ever() -> None:
        await asyncio.sleep(math.inf)

    async def at_nan() -> None:
        asyncio.get_running_loop().call_at(math.nan, int)

    with pytest.raises(Deadlock, match="at sleep:"):
        run_virtual(for_ever())
    with pytest.raises(ValueError, match="at nan s"):
        run_virtual(at_nan())


def test_another_thread_has_no_place_in_virtual_time() -> None:
    """What it wants to call is refused, to the thread's own face."""

    async def main() -> list[str]:
        loop, told = asyncio.get_running_loop(), list[str]()

        def reach_in() -> None:
            try:
                loop.call_soon_threadsafe(int)
            except RuntimeError as error:
                told.append(str(error))

        thread = threading.Thread(target=reach_in)
        thread.start()
        thread.join()
        return told

    assert run_virtual(main()) == [
        "a thread reached into virtual time: use Runner.to_thread instead"
    ]


def test_who_looks_on_sees_every_task_go_on_from_an_await_and_none_begin() -> None:
    """Each of the awaits, in order; a task that has not begun stands at none."""

    async def main() -> list[str]:
        seen: list[str] = []
        loop = cast("VirtualLoop", asyncio.get_running_loop())
        loop.on_resume = lambda task: seen.append(task.get_name())
        task = asyncio.create_task(twice(), name="t")
        await asyncio.wait([task])
        loop.on_resume = None
        return [name for name in seen if name == "t"]

    async def twice() -> None:
        await asyncio.sleep(0)
        await asyncio.sleep(1)

    assert run_virtual(main()) == ["t", "t"]


def test_a_closed_loop_takes_nothing_more() -> None:
    """As asyncio's own loops."""
    loop = VirtualLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print)
