"""Runs with faults in virtual time: one seed is one machine, one workload and one weather.

`run_with_faults(seed)` plays small episodes through an executor while awaits fail, engines die and
weights change, and then asks what must hold whatever happened (`executors.fault_checks`). A seed
replays its run exactly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.errors import AgentflowError
from agentflow.scheduling import Limits
from agentflow.sim.clock import Deadlock, VirtualRunner, run_virtual
from agentflow.sim.disturbances import Disturbances
from agentflow.sim.engine_spec import EngineSpec, EngineTimings
from agentflow.sim.environment import EnvLimits
from agentflow.sim.faults import (
    FaultRates,
    FaultSource,
    FaultyEnvBuilder,
    FaultyModel,
    FaultyRuntimeBuilder,
)
from agentflow.sim.setup import Simulation, SimulationConfig
from agentflow.sim.workload import load_workload
from executors.drivers import ActionLevel, Schedule, action_level, driver_of
from executors.fault_checks import check_cleanup, check_samples
from executors.simulate import source_of
from executors.token_meter import MeteredModel
from executors.weight_sync import WeightSync
from priority.policies import FcfsPreempt

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping, Sequence

    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample
    from executors.drivers import Driver, DriverFactory

HORIZON_S = 50_000.0
"""Virtual seconds after which a run counts as hung; undisturbed it would take about a minute."""
_CANCELLED_SHARE = 0.2
"""Share of the seeds whose whole run is cancelled on the way."""
_SLOWNESS = (0.005, 0.05, 0.5)
"""Seconds of a decode step: generations are shorter, as long, and longer than commands."""
SETTLE_S = 60.0
"""Virtual seconds after the end in which late aborts reach the engines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRun:
    """What one seed led to."""

    seed: int
    episodes: int
    turns: int
    faults: Mapping[str, int]
    cancelled: bool
    """Whether the whole run was cancelled on the way."""
    violations: Sequence[str]
    """What did not hold; empty when all is well."""
    events_digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultPlan:
    """What a seed chose."""

    traces: Sequence[EpisodeTrace]
    config: SimulationConfig
    max_concurrency: int
    disturb_every_s: float
    cancel_after_s: float | None
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
        cancel_after_s=rng.uniform(0, 60) if rng.random() < _CANCELLED_SHARE else None,
        actions=_actions_of(runner.random("actions")),
    )


def _actions_of(rng: random.Random) -> ActionLevel:
    """Draw limits, policy and preemption."""
    live = rng.randint(1, 12)
    limits = Limits(
        generations=rng.randint(1, live),
        live=live,
        admitted=live + rng.randint(0, 4),
        starts=rng.randint(1, 4),
        commands=rng.randint(1, live),
        rewards=rng.randint(1, 3),
        preemptions=rng.randint(0, 3),
        age_s=rng.choice([float("inf"), 1.0, 30.0]),
    )
    preempts = rng.random() < 0.7  # noqa: PLR2004  # most of the time
    return ActionLevel(
        limits=limits,
        policy=FcfsPreempt(window=rng.randint(0, 8), preempts=preempts),
        submitted=limits.admitted + rng.randint(1, 6),
        partial_rollout=rng.random() < 0.8,  # noqa: PLR2004  # most of the time
        max_attempts=rng.choice([3, 64]),
    )


def run_with_faults(
    seed: int,
    *,
    schedule: Schedule = Schedule.NAIVE,
    make_driver: DriverFactory | None = None,
    rates: FaultRates | None = None,
) -> FaultRun:
    """Play one seed under `schedule`, or with a driver of one's own.

    Never raises for what a run does wrong: that is a violation.
    """
    plan = plan_of(seed)
    driver = make_driver
    if driver is None and schedule is Schedule.ACTION_DRAWN:
        driver = action_level(plan.actions)
    elif driver is None:
        driver = driver_of(
            schedule,
            slots=plan.config.engine.slots * plan.config.replicas,
            live=plan.max_concurrency,
            containers=plan.config.limits.containers,
            submitted=len(plan.traces),
        )
    run = _Run(plan, rates if rates is not None else FaultRates())
    try:
        run_virtual(run.play(driver))
    except (AgentflowError, ExceptionGroup, AssertionError, TimeoutError) as exc:
        run.violations.append(_told(exc))
    return run.result(seed)


class _Run:
    """One seed on its way."""

    def __init__(self, plan: FaultPlan, rates: FaultRates) -> None:
        self.plan = plan
        self.rates = rates
        self.violations: list[str] = []
        self.ended: list[RolloutSample] = []
        self.counts: Counter[str] = Counter()
        self.digest = ""

    async def play(self, make_driver: DriverFactory) -> None:
        """Run to the end, or to the cancellation, and check."""
        simulation = Simulation(self.plan.traces, self.plan.config)
        faults = FaultSource(simulation.runner.random("faults"), self.rates)
        model = FaultyModel(simulation.model, faults)
        engine, simulation.model = simulation.model, MeteredModel(model)
        simulation.env_builder = FaultyEnvBuilder(simulation.envs, faults)
        simulation.runtime_builder = FaultyRuntimeBuilder(simulation.runtime_builder, faults)
        source = source_of(simulation, on_ended=self.ended.append)
        driver = make_driver(simulation, source)
        weather = Disturbances(
            engines=simulation.engines,
            model=model,
            engine=engine,
            sync_weights=WeightSync(
                [driver], simulation.engines, runner=simulation.runner, events=simulation.events
            ).run,
            rng=simulation.runner.random("disturbances"),
            every_s=self.plan.disturb_every_s,
        )
        async with asyncio.timeout(HORIZON_S):
            await _drive(driver, weather, self.plan.cancel_after_s)
            await asyncio.sleep(SETTLE_S)
        self.counts = faults.counts + weather.counts
        self.digest = simulation.events.digest
        cancelled = self.plan.cancel_after_s is not None
        self.violations += check_cleanup(simulation)
        source.check()
        self.violations += check_samples(
            self.ended, simulation, received=simulation.model.received, cancelled=cancelled
        )

    def result(self, seed: int) -> FaultRun:
        """Summarise."""
        return FaultRun(
            seed=seed,
            episodes=len(self.ended),
            turns=sum(sample.facts.turns for sample in self.ended),
            faults=dict(self.counts),
            cancelled=self.plan.cancel_after_s is not None,
            violations=self.violations,
            events_digest=self.digest,
        )


async def _drive(driver: Driver, weather: Disturbances, cancel_after_s: float | None) -> None:
    """Run the driver in the weather; cancel it when that is planned."""
    async with asyncio.TaskGroup() as group:
        disturbing = group.create_task(weather.disturb(), name="weather")
        try:
            async with asyncio.timeout(cancel_after_s):
                await driver.run()
        except TimeoutError:
            if cancel_after_s is None:
                raise
        finally:
            disturbing.cancel()
            await driver.close()


def _told(exc: BaseException) -> str:
    """One line for a person."""
    if isinstance(exc, BaseExceptionGroup):
        return "; ".join(_told(inner) for inner in exc.exceptions)
    if isinstance(exc, TimeoutError):
        return f"hung: not ended after {HORIZON_S:.0f} virtual seconds"
    kind = "hung" if isinstance(exc, Deadlock) else f"raised {type(exc).__name__}"
    return f"{kind}: {exc}"
