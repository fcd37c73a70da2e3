"""Runs with faults in virtual time: one seed is one machine, one workload and one weather.

`run_with_faults(seed)` plays small episodes through executors while awaits fail or are cancelled,
engines and workers die and weights change, and then asks what must hold whatever happened
(`executors.virtual.fault_checks`). A seed replays its run exactly.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from agentflow.errors import AgentflowError
from agentflow.sim.cancellations import Cancellations
from agentflow.sim.clock import Deadlock, VirtualLoop, run_virtual
from agentflow.sim.disturbances import Disturbances
from agentflow.sim.faults import (
    FaultRates,
    FaultSource,
    FaultyEnvBuilder,
    FaultyModel,
    FaultyRuntimeBuilder,
)
from agentflow.sim.setup import Simulation
from executors.data.token_books import TokenBooks
from executors.runs.token_meter import MeteredModel
from executors.virtual.crew import RUN, SPARED, Crew
from executors.virtual.drivers import Schedule, action_level, driver_of
from executors.virtual.fault_checks import check_cleanup, check_samples, check_tokens
from executors.virtual.fault_plans import plan_of
from executors.virtual.simulate import source_of
from executors.weight_sync import WeightSync

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence

    from agentflow.types import RolloutSample
    from executors.virtual.drivers import DriverFactory
    from executors.virtual.fault_plans import FaultPlan

HORIZON_S = 50_000.0
"""Virtual seconds after which a run counts as hung; undisturbed it would take about a minute."""
SETTLE_S = 60.0
"""Virtual seconds after the end in which late aborts reach the engines."""

_ENDS_A_WORKER = frozenset({RUN, "processor", "interaction"})
"""Tasks whose cancellation ends a worker; too often, and no episode would come to its end."""


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
    tokens: Mapping[str, int]
    """Generated tokens by what became of them; they add up to `received`."""
    events_digest: str


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
    except (AgentflowError, BaseExceptionGroup, AssertionError, TimeoutError) as exc:
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
        self.tokens: dict[str, int] = {}
        self.digest = ""

    async def play(self, make_driver: DriverFactory) -> None:
        """Run to the end, or to the cancellation, and check."""
        plan = self.plan
        simulation = Simulation(plan.traces, plan.config)
        faults = FaultSource(simulation.runner.random("faults"), self.rates)
        model = FaultyModel(simulation.model, faults)
        engine, simulation.model = simulation.model, MeteredModel(model)
        simulation.env_builder = FaultyEnvBuilder(simulation.envs, faults)
        simulation.runtime_builder = FaultyRuntimeBuilder(simulation.runtime_builder, faults)
        books = TokenBooks(simulation.model.received)
        source = source_of(simulation, on_ended=partial(self._take, books), observer=books)
        crew = Crew(make_driver, simulation, source)
        weather = Disturbances(
            engines=simulation.engines,
            model=model,
            engine=engine,
            sync_weights=WeightSync(
                crew.drivers, simulation.engines, runner=simulation.runner, events=simulation.events
            ).run,
            rng=simulation.runner.random("disturbances"),
            every_s=plan.disturb_every_s,
        )
        cancellations = Cancellations(
            cast("VirtualLoop", asyncio.get_running_loop()),
            simulation.runner.random("cancellations"),
            share=plan.cancel_share,
            spared={SPARED},
            seldom=_ENDS_A_WORKER,
        )
        losses = crew.give_up_some(
            simulation.runner.random("losses"), every_s=plan.lose_worker_every_s
        )
        me = asyncio.current_task()
        assert me is not None
        me.set_name(SPARED)
        cancellations.start()
        async with asyncio.timeout(HORIZON_S):
            await _beside(
                crew.work(plan.workers), weather.disturb(), losses, end_after_s=plan.end_after_s
            )
            cancellations.stop()
            await asyncio.sleep(SETTLE_S)
        self.counts = faults.counts + weather.counts + crew.counts + cancellations.counts
        self.digest = simulation.events.digest
        self.violations += check_cleanup(simulation)
        source.check()
        self.violations += check_samples(
            self.ended,
            simulation,
            received=simulation.model.received,
            reissued=crew.reissued,
            cancelled=plan.end_after_s is not None,
            mixed_weights=weather.mixed,
        )
        source.take_groups()
        self.tokens = books.figures()
        self.violations += check_tokens(self.tokens, cancelled=plan.end_after_s is not None)

    def _take(self, books: TokenBooks, sample: RolloutSample) -> None:
        self.ended.append(sample)
        books.ended(sample)

    def result(self, seed: int) -> FaultRun:
        """Summarise."""
        return FaultRun(
            seed=seed,
            episodes=len(self.ended),
            turns=sum(sample.facts.turns for sample in self.ended),
            faults=dict(self.counts),
            cancelled=self.plan.end_after_s is not None,
            violations=self.violations,
            tokens=self.tokens,
            events_digest=self.digest,
        )


async def _beside(
    work: Coroutine[None, None, None],
    *others: Coroutine[None, None, None],
    end_after_s: float | None,
) -> None:
    """Do `work`, and the others as long as that takes; cancel it when that is planned."""
    async with asyncio.TaskGroup() as group:
        beside = [group.create_task(other, name=SPARED) for other in others]
        try:
            async with asyncio.timeout(end_after_s):
                await work
        except TimeoutError:
            if end_after_s is None:
                raise
        finally:
            for task in beside:
                task.cancel()


def _told(exc: BaseException) -> str:
    """One line for a person."""
    if isinstance(exc, BaseExceptionGroup):
        return "; ".join(_told(inner) for inner in exc.exceptions)
    if isinstance(exc, TimeoutError):
        return f"hung: not ended after {HORIZON_S:.0f} virtual seconds"
    kind = "hung" if isinstance(exc, Deadlock) else f"raised {type(exc).__name__}"
    return f"{kind}: {exc}"
