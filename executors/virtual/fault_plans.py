"""FaultPlan: one seed is one machine, one workload and one weather."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.scheduling import Limits
from agentflow.sim.clock import VirtualRunner
from agentflow.sim.engine_spec import EngineSpec, EngineTimings
from agentflow.sim.environment import EnvLimits
from agentflow.sim.setup import SimulationConfig
from agentflow.sim.workload import load_workload
from executors.virtual.drivers import ActionLevel
from priority.policies import (
    Fcfs,
    FcfsPreempt,
    GroupCompletion,
    LongestPredictedFirst,
    Priority,
)

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from agentflow.sim.trace import EpisodeTrace
    from priority.policies import Policy, Standing

_ENDED_SHARE = 0.1
"""Share of the seeds whose whole run is cancelled on the way."""
_SLOWNESS = (0.005, 0.05, 0.5)
"""Seconds of a decode step: generations are shorter, as long, and longer than commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What a seed chose."""

    traces: Sequence[EpisodeTrace]
    config: SimulationConfig
    max_concurrency: int
    disturb_every_s: float
    workers: int
    lose_worker_every_s: float | None
    cancel_share: float
    """Of the awaits, so many are cancelled."""
    end_after_s: float | None
    """When the whole run is cancelled."""
    actions: ActionLevel
    """How AgenticExecutor works, under `Schedule.ACTION_DRAWN`."""


def plan_of(seed: int, *, groups: int = 3, group_size: int = 4) -> FaultPlan:
    """Draw the machine, the episodes and the weather of `seed`."""
    runner = VirtualRunner(seed=seed)
    rng = runner.random("plan")
    workload = load_workload("tiny")
    slow = rng.choice(_SLOWNESS)
    engine = EngineSpec(
        timings=EngineTimings(a=slow, b=slow / 50, c=slow / 1e4, pa=slow, pb=slow / 100, pg=0.0),
        slots=rng.randint(1, 8),
        kv_tokens=rng.choice([None, 700, 1500]),
        context_length=workload.context_cap,
        update_s=rng.choice([0.0, 2.0]),
        priorities=rng.random() < 0.5,  # noqa: PLR2004  # every other one
    )
    limits = EnvLimits(
        containers=rng.choice([None, 2, 6]),
        starts=rng.choice([None, 1, 3]),
        start_growth=workload.start_growth,
    )
    return FaultPlan(
        traces=workload.episodes(groups=groups, group_size=group_size, random_for=runner.random),
        config=SimulationConfig(
            engine=engine, replicas=rng.randint(1, 3), limits=limits, seed=seed
        ),
        max_concurrency=rng.randint(1, 12),
        disturb_every_s=rng.choice([2.0, 10.0, 60.0]),
        workers=rng.choice([1, 1, 2, 3]),
        lose_worker_every_s=rng.choice([None, 30.0]),
        cancel_share=rng.choice([0.0, 0.003, 0.01, 0.03]),
        end_after_s=rng.uniform(0, 60) if rng.random() < _ENDED_SHARE else None,
        actions=_actions_of(runner.random("actions")),
    )


def _actions_of(rng: random.Random) -> ActionLevel:
    """Draw limits, policy and preemption."""
    live = rng.randint(1, 12)
    limits = Limits(
        generations=min(live, rng.choice([1, 1, 2, 8])),
        live=live,
        admitted=live + rng.randint(0, 4),
        starts=rng.randint(1, 4),
        commands=rng.randint(1, live),
        rewards=rng.randint(1, 3),
        preemptions=rng.randint(0, 3),
        age_s=rng.choice([math.inf, 1.0, 30.0]),
        together=rng.choice([1, 1, 2]),
    )
    return ActionLevel(
        limits=limits,
        policy=_policy_of(rng),
        kv_share=rng.choice([None, 0.15, 0.6]),
        foresees=rng.random() < 0.7,  # noqa: PLR2004  # most of the time
        submitted=limits.admitted + rng.randint(1, 6),
        partial_rollout=rng.random() < 0.8,  # noqa: PLR2004  # most of the time
        max_attempts=rng.choice([3, 64]),
    )


@dataclass(frozen=True, slots=True)
class Drawn:
    """Classes and ranks by chance whenever an item queues, so that many are preempted."""

    rng: random.Random
    """Drawn from for every answer."""
    preempts: bool = True

    def classify(self, standing: Standing) -> Priority:  # noqa: ARG002  # that is the policy
        """Draw."""
        return Priority(high=self.rng.random() < 1 / 3, rank=self.rng.random())


def _policy_of(rng: random.Random) -> Policy:
    """Draw a policy, most often one that may preempt."""
    preempts = rng.random() < 0.7  # noqa: PLR2004  # most of the time
    policies: list[Policy] = [
        FcfsPreempt(window=rng.randint(0, 8), preempts=preempts),
        LongestPredictedFirst(high_above=rng.choice([20, 60]), preempts=preempts),
        *3 * [Drawn(rng)],
        Fcfs(),
        GroupCompletion(),
    ]
    return rng.choice(policies)
