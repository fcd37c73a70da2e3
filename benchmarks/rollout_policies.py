"""The policies of `benchmarks.rollout`: which executor drives the episodes, in what order.

Whatever is registered as a priority policy is one of them. Those that rank by predicted length get
perfect predictions: what they show is the most that a predictor could bring.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from agentflow.config import RolloutConfig
from agentflow.policies import BUILTIN_POLICY
from executors.virtual.drivers import action_level, action_level_of, naive

if TYPE_CHECKING:
    from agentflow.sim.setup import Simulation
    from agentflow.types import SyncMode
    from benchmarks.rollout_scenarios import Scenario
    from executors.data.coordinator import DataCoordinator
    from executors.virtual.drivers import ActionLevel, Driver, DriverFactory

SLOTS: Final = "trajectory_slots"
"""NaiveExecutor with as many trajectories as generation slots."""
CONTAINERS: Final = "trajectory_containers"
"""NaiveExecutor with as many trajectories as containers; the engine's queue holds the rest."""
POLICIES: Final = (SLOTS, CONTAINERS, *BUILTIN_POLICY)

JUDGED: Final = (SLOTS, CONTAINERS, "fcfs")
"""Those that a goal speaks of."""

_UNFORESEEING: Final = ("fcfs", "fcfs_preempt", "group_completion")
"""They look at no prediction."""
_PREEMPTING: Final = ("fcfs_preempt",)


def driver_of(policy: str, scenario: Scenario) -> DriverFactory:
    """Return what drives `scenario` under `policy`: a worker for every replica."""
    share = scenario.containers // scenario.replicas
    if policy == SLOTS:
        worker = naive(scenario.slots)
    elif policy == CONTAINERS:
        worker = naive(share)
    else:
        worker = action_level(_settings(policy, scenario, live=share))
    return worker if scenario.replicas == 1 else _a_worker_each(worker)


def _settings(policy: str, scenario: Scenario, *, live: int) -> ActionLevel:
    section: dict[str, Any] = {"name": policy}
    if policy == "fcfs_preempt":
        section["window"] = scenario.slots // 2  # half of the slots may be taken by force
    episodes = scenario.groups * scenario.group_size
    rollout = RolloutConfig(
        max_concurrency=live,
        gen_concurrency=scenario.slots,
        async_factor=1.0,
        start_concurrency=live,
        reward_concurrency=live,
        policy=section,
        preemption=policy in _PREEMPTING,
    )
    return action_level_of(
        rollout,
        submitted=episodes if scenario.replicas == 1 else live,
        foresees=policy not in _UNFORESEEING,
    )


def _a_worker_each(worker: DriverFactory) -> DriverFactory:
    def make(simulation: Simulation, source: DataCoordinator, name: str) -> Driver:
        workers = [
            worker(simulation.on_replica(index), source, f"{name} {index}")
            for index in range(len(simulation.engines))
        ]
        return _Workers(name, workers)

    return make


class _Workers:
    """Several drivers as one."""

    def __init__(self, name: str, workers: list[Driver]) -> None:
        self.name = name
        self._workers = workers

    async def run(self) -> None:
        """Roll out every sample of the source."""
        async with asyncio.TaskGroup() as tasks:
            for worker in self._workers:
                tasks.create_task(worker.run())

    async def close(self) -> None:
        """Close all."""
        for worker in self._workers:
            await worker.close()

    def pause_dispatch(self) -> None:
        """Start no new sample."""
        for worker in self._workers:
            worker.pause_dispatch()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        for worker in self._workers:
            worker.resume_dispatch()

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start."""
        for worker in self._workers:
            await worker.pause_generations(mode)

    async def resume_generations(self) -> None:
        """Generate again."""
        for worker in self._workers:
            await worker.resume_generations()
