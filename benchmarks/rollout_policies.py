"""The policies of `benchmarks.rollout`: which executor drives the episodes, in what order.

Whatever is registered as a priority policy is one of them. Those that rank by predicted length get
perfect predictions: what they show is the most that a predictor could bring.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentflow.config import RolloutConfig
from agentflow.policies import BUILTIN_POLICY
from executors.virtual.drivers import action_level, action_level_of, naive
from executors.virtual.replica_drivers import one_each

if TYPE_CHECKING:
    from benchmarks.rollout_scenarios import Scenario
    from executors.virtual.drivers import ActionLevel, DriverFactory

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
    if scenario.replicas == 1:
        return worker
    return one_each([worker] * scenario.replicas, alike=False)


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
