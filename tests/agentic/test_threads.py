"""Real threads: the runner's workers, two rollout workers, and whole runs over the flow worker."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from world import ByChance, World, assert_same_tokens, turns

from agentflow.runner import AsyncioRunner
from agentflow.types import SyncMode
from executors.data.coordinator import WorkerGivenUp

if TYPE_CHECKING:
    from executors.worker import RolloutWorker


@pytest.fixture
def runner() -> AsyncioRunner:
    """Give a runner with real threads."""
    return AsyncioRunner()


async def test_a_worker_runs_on_its_own_thread_and_calls_itself_inline(
    runner: AsyncioRunner,
) -> None:
    """Each name is one thread; a call from the worker to itself does not wait for itself."""

    async def where() -> str:
        return threading.current_thread().name

    async def twice() -> tuple[str, str]:
        return await where(), await runner.on_flow_worker(where())

    flow = await runner.on_flow_worker(twice())
    assert flow == ("agentflow-flow-worker",) * 2
    assert await runner.on_worker("w", where()) == "agentflow-w"
    assert await where() == "MainThread"
    runner.close()
    runner.close()


async def test_a_cancelled_call_returns_when_the_work_there_has_ended(
    runner: AsyncioRunner,
) -> None:
    """Cleaning up on the worker's loop is over before the caller goes on."""
    begun, cleaned = threading.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            for _ in range(50):
                await asyncio.sleep(0)
            cleaned.set()

    task = asyncio.ensure_future(runner.on_flow_worker(work()))
    await runner.to_thread(begun.wait)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned.is_set()
    runner.close()


async def test_an_exception_crosses_threads(runner: AsyncioRunner) -> None:
    """What the work raises is raised where it was awaited."""

    async def fail() -> None:
        raise ZeroDivisionError("there")

    with pytest.raises(ZeroDivisionError, match="there"):
        await runner.on_worker("w", fail())
    runner.close()


def threaded(world: World, runner: AsyncioRunner) -> World:
    """Give the world real threads: a flow worker, and a thread for each rollout worker."""
    world.runner = runner  # type: ignore[assignment]
    world.coordinator._runner = runner
    return world


@pytest.mark.parametrize("action_level", [True, False])
async def test_two_workers_on_their_threads_share_an_engine_and_survive_syncs(
    runner: AsyncioRunner, *, action_level: bool
) -> None:
    """Flow and engine stay on the flow worker; samples are those of one loop, undisturbed."""
    alone = World(seed=0, tasks=6)
    await alone.run()
    await alone.close()
    world = threaded(World(seed=0, tasks=6), runner)
    workers = [world.make_worker(f"w{i}", action_level=action_level) for i in (1, 2)]
    flows = [worker.flow for worker in workers]
    sync = world.sync(*workers)

    async def disturb() -> None:
        modes = [SyncMode.ABORT, SyncMode.IN_PLACE, SyncMode.DRAIN, SyncMode.RETRACT]
        while True:
            for mode in modes:
                await asyncio.sleep(0.001)
                await sync.run(mode, world.new_weights)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        syncs = tasks.create_task(disturb())
        async with asyncio.TaskGroup() as rollouts:
            for worker in workers:
                rollouts.create_task(worker.run())
        syncs.cancel()
    for flow in flows:
        await runner.on_flow_worker(flow.close())
    world.check_closed()
    assert_same_tokens(world, alone)
    runner.close()


async def test_cancelling_a_worker_from_another_thread_leaves_nothing(
    runner: AsyncioRunner,
) -> None:
    """Every environment is gone and every lease is back when the cancelled run returns."""
    world = threaded(World(seed=0, tasks=6), runner)
    worker = world.make_worker("w1")
    first = threading.Event()
    world.coordinator._on_ended = lambda _sample: first.set()
    task = asyncio.ensure_future(worker.run())
    async with asyncio.timeout(20):
        await runner.to_thread(first.wait)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await worker.flow.close()  # type: ignore[attr-defined]
    world.coordinator.check()
    assert world.coordinator.counts().leased == 0
    assert not world.envs.live
    runner.close()


class Crew:
    """Two workers on threads of their own; one that is lost is replaced under a new name."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self.world, self.chance = world, chance
        self.workers: dict[asyncio.Task[None], RolloutWorker] = {}
        self.names = itertools.count(1)
        self.flows: list[Any] = []

    def hire(self) -> None:
        """Start one more."""
        worker = self.world.make_worker(f"w{next(self.names)}")
        self.flows.append(self.world.flow)
        self.workers[asyncio.ensure_future(worker.run())] = worker

    async def lose_some(self) -> None:
        """Cancel a worker, or give it up while it runs on, at six random moments."""
        for _ in range(6):
            await turns(self.chance.randint(1, 400))
            if self.workers:
                run = self.chance.choice(list(self.workers))
                if self.chance.random() < 0.5:
                    run.cancel()
                else:
                    self.world.coordinator.release_worker(self.workers[run].name)

    async def work(self) -> None:
        """Work until all samples have ended."""
        for _ in range(2):
            self.hire()
        while self.workers:
            done, _ = await asyncio.wait(self.workers, return_when=asyncio.FIRST_COMPLETED)
            for run in done:
                del self.workers[run]
                failure = None if run.cancelled() else run.exception()
                if run.cancelled() or failure is not None:
                    self.hire()
                if isinstance(failure, BaseExceptionGroup):
                    _, failure = failure.split(WorkerGivenUp)
                if failure is not None:
                    raise failure


@pytest.mark.parametrize("seed", range(3))
async def test_workers_that_are_lost_on_their_threads_cost_no_sample_and_no_token(
    runner: AsyncioRunner, seed: int
) -> None:
    """Under updates in all modes and preemptions: each ends once, and every token has a cause."""
    chance = random.Random(seed)
    world = threaded(World(tasks=6, policy=ByChance(chance), max_attempts=10_000), runner)
    crew = Crew(world, chance)

    async def update() -> None:
        while True:
            await turns(chance.randint(1, 100))
            sync = world.sync(*crew.workers.values())
            await sync.run(chance.choice(sorted(SyncMode)), world.new_weights)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        beside = [tasks.create_task(update()), tasks.create_task(crew.lose_some())]
        await crew.work()
        for task in beside:
            task.cancel()
    for flow in crew.flows:
        await runner.on_flow_worker(flow.close())
    tokens = world.check_books()
    assert len(world.by_episode()) == 18
    assert tokens["received"] == tokens["delivered"] + tokens["restarted"] + tokens["lost"]
    assert not world.envs.live
    runner.close()


async def test_agents_and_runtimes_are_built_beside_the_loops(runner: AsyncioRunner) -> None:
    """Preparing a sample may take long: neither the flow worker nor the executor stands still."""
    world = threaded(World(seed=0, tasks=2), runner)
    worker = world.make_worker("w1")
    build, built_on = world.runtimes.build, set[str]()

    def noted(sample: Any) -> Any:
        built_on.add(threading.current_thread().name)
        return build(sample)

    world.runtimes.build = noted  # type: ignore[method-assign]
    async with asyncio.timeout(20):
        await worker.run()
    await runner.on_flow_worker(world.flow.close())
    world.check_closed()
    assert built_on
    assert not {"MainThread", "agentflow-w1", "agentflow-flow-worker"} & built_on
    runner.close()
