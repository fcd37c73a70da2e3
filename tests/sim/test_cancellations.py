"""What becomes of a run when one of its tasks, and no other, is cancelled at an await."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, cast

import pytest
from test_simulate import config, tiny

from agentflow.errors import WorkerCancelled
from agentflow.scheduling import Limits
from agentflow.sim.cancellations import Cancellations
from agentflow.sim.clock import VirtualRunner, run_virtual
from agentflow.sim.faults import FaultRates, FaultSource, FaultyEnvBuilder
from agentflow.sim.setup import Simulation
from agentflow.types import Cause, SyncMode
from executors.data.coordinator import LOCAL, DataCoordinator
from executors.virtual.drivers import ActionLevel, action_level, naive
from executors.virtual.simulate import source_of
from executors.weight_sync import WeightSync
from priority.policies import Fcfs

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.sim.clock import NumberedTask, VirtualLoop
    from agentflow.types import RolloutSample
    from executors.virtual.drivers import Driver, DriverFactory

ACTIONS = action_level(
    ActionLevel(
        limits=Limits(
            generations=3, live=4, admitted=5, starts=2, commands=4, rewards=2, preemptions=1
        ),
        policy=Fcfs(),
        submitted=6,
    )
)


def loop() -> VirtualLoop:
    """Return the loop that runs."""
    return cast("VirtualLoop", asyncio.get_running_loop())


class CancelOne:
    """Cancels the task of one name or coroutine at its `nth` await, once."""

    def __init__(self, victim: str, nth: int) -> None:
        self.victim = victim
        self.left = nth
        loop().on_resume = self.resumes

    def resumes(self, task: NumberedTask[Any]) -> None:
        """Count the victim's awaits."""
        if self.victim in {task.get_name(), getattr(task.get_coro(), "__name__", "")}:
            self.left -= 1
            if self.left == 0:
                task.cancel()


class World:
    """A small simulation, a driver, and what has ended."""

    def __init__(self, make_driver: DriverFactory, faults: FaultSource | None = None) -> None:
        self.simulation = Simulation(tiny(groups=2), config(slots=3))
        if faults is not None:
            self.simulation.env_builder = FaultyEnvBuilder(self.simulation.envs, faults)
        self.ended: list[RolloutSample] = []
        self.source: DataCoordinator = source_of(self.simulation, on_ended=self.ended.append)
        self.driver: Driver = make_driver(self.simulation, self.source, LOCAL)

    def causes(self) -> Counter[Cause]:
        """Count endings; every sample has ended once, and nothing is left behind."""
        self.check_nothing_left()
        assert Counter(s.episode for s in self.ended) == Counter(
            trace.episode for trace in self.simulation.traces
        )
        return Counter(sample.ending.cause for sample in self.ended if sample.ending)

    def check_nothing_left(self) -> None:
        """No environment, request or task is left, nor a lease once the worker is released."""
        self.source.release_worker(LOCAL)
        assert not self.simulation.envs.live
        assert not any(engine.in_flight for engine in self.simulation.engines)
        assert self.source.counts().leased == 0
        self.source.check()
        assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("nth", [1, 2, 6, 20, 40, 60, 80])
@pytest.mark.parametrize("make_driver", [naive(4), ACTIONS])
def test_a_cancelled_episode_ends_once_and_the_others_go_on(
    make_driver: DriverFactory, nth: int
) -> None:
    """Whether it waits for its turn or takes it; its tokens are written off."""

    async def main() -> None:
        world = World(make_driver)
        CancelOne("_rolled_out", nth)
        await world.driver.run()
        await world.driver.close()
        await asyncio.sleep(60)  # aborts reach the engine
        assert world.causes() == {Cause.SUBMITTED: 7, Cause.CANCELLED: 1}
        lost = next(s for s in world.ended if s.remove_sample)
        assert lost.ending is not None
        assert lost.partial_agent_data is None

    run_virtual(main())


@pytest.mark.parametrize("nth", [1, 2, 7])
@pytest.mark.parametrize("victim", ["processor", "interaction"])
def test_a_run_whose_scheduling_is_cancelled_fails_and_leaves_nothing(
    victim: str, nth: int
) -> None:
    """Nothing would ever be dispatched again, so nobody may wait for it."""

    async def main() -> None:
        world = World(ACTIONS)
        CancelOne(victim, nth)
        with pytest.raises(ExceptionGroup) as raised:
            await world.driver.run()
        assert raised.group_contains(WorkerCancelled, match=victim)
        await world.driver.close()
        await asyncio.sleep(60)
        world.check_nothing_left()

    run_virtual(main())


@pytest.mark.parametrize("mode", SyncMode)
@pytest.mark.parametrize("nth", [1, 2, 3])
@pytest.mark.parametrize("make_driver", [naive(4), ACTIONS])
def test_a_cancelled_weight_sync_raises_and_everything_goes_on(
    make_driver: DriverFactory, nth: int, mode: SyncMode
) -> None:
    """Whatever it had paused is resumed."""

    async def main() -> None:
        world = World(make_driver)
        engines = world.simulation.engines
        sync = WeightSync([world.driver], engines, runner=world.simulation.runner)
        run = asyncio.create_task(world.driver.run())
        await asyncio.sleep(3)
        CancelOne("weight sync", nth)
        update = asyncio.create_task(sync.run(mode, slow_update), name="weight sync")
        await asyncio.wait([update])
        assert update.cancelled()
        await run
        await world.driver.close()
        assert world.causes() == {Cause.SUBMITTED: 8}

    run_virtual(main())


async def slow_update() -> None:
    """Take a moment."""
    await asyncio.sleep(1)


@pytest.mark.parametrize("make_driver", [naive(4), ACTIONS])
def test_a_cancelled_close_has_closed(make_driver: DriverFactory) -> None:
    """Every environment is removed, though it is cancelled while the first one is."""

    async def main() -> None:
        slow = FaultSource(VirtualRunner().random("slow"), FaultRates(start=0, stop=1))
        world = World(make_driver, slow)
        flow = world.driver._flow  # type: ignore[attr-defined]
        for sample in world.simulation.samples()[:3]:
            await flow.run_start_step(await flow.preprocess(sample))
        closing = asyncio.create_task(world.driver.close())
        await asyncio.sleep(0.01)
        assert len(world.simulation.envs.live) == 3
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        world.check_nothing_left()

    run_virtual(main())


def hits(share: float, names: dict[str, Callable[[], Awaitable[None]]], seed: int) -> Counter[str]:
    """Run named tasks under Cancellations and count whom they hit."""

    async def main() -> Counter[str]:
        chance = VirtualRunner(seed=seed).random("c")
        found = Cancellations(loop(), chance, share=share, spared={"spared"}, seldom={"seldom"})
        tasks = [asyncio.ensure_future(call()) for call in names.values()]
        for task, name in zip(tasks, names, strict=True):
            task.set_name(name)  # type: ignore[attr-defined]
        found.start()
        await asyncio.wait(tasks)
        found.stop()
        return found.counts

    return run_virtual(main())


async def many_awaits() -> None:
    """Wait a hundred times."""
    for _ in range(100):
        await asyncio.sleep(0.1)


def test_a_seed_fixes_who_is_cancelled_and_nobody_is_who_is_spared() -> None:
    """Each await is drawn; a share of 0 hits nobody."""
    names = dict.fromkeys(("one", "two", "spared"), many_awaits)
    assert hits(0.5, names, 1) == {"cancelled: one": 1, "cancelled: two": 1}
    assert hits(0.0, names, 1) == {}
    assert hits(0.02, names, 3) == hits(0.02, names, 3)
