"""Whole runs in virtual time: a list of traces through an executor, judged by the lower bound."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, assert_never

from agentflow.naive_flow import NaiveFlow
from agentflow.policies import build_policy
from agentflow.sim.bound import turn_s
from agentflow.sim.clock import run_virtual
from agentflow.sim.setup import Simulation
from agentflow.swe.action_level_flow import Scheduling
from executors.agentic import AgenticExecutor
from executors.coordinator import LOCAL, DataCoordinator
from executors.hooks import CoordinatorHooks
from executors.naive import NaiveExecutor
from executors.scheduling import make_limits, make_settings
from executors.weight_sync import Pausable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from agentflow.config import RolloutConfig
    from agentflow.sim.bound import LowerBound, Waterfall
    from agentflow.sim.engine_spec import EngineTimings
    from agentflow.sim.sequence import EngineUse
    from agentflow.sim.setup import SimulationConfig
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample
    from priority.policies import Policy

    DriverFactory: TypeAlias = Callable[[Simulation, DataCoordinator], "Driver"]


class Driver(Pausable, Protocol):
    """An executor of any kind over a simulation's parts."""

    async def run(self) -> None:
        """Roll out every sample of the source."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes."""
        ...


class NaiveDriver:
    """Trajectory-level scheduling: NaiveExecutor over SWEAgentFlow."""

    def __init__(
        self, simulation: Simulation, source: DataCoordinator, *, max_concurrency: int
    ) -> None:
        self._flow = simulation.flow()
        self._executor = NaiveExecutor(
            NaiveFlow(self._flow),
            source,
            renderer=simulation.renderer,
            max_concurrency=max_concurrency,
        )
        self.pause_dispatch = self._executor.pause_dispatch
        self.resume_dispatch = self._executor.resume_dispatch
        self.pause_generations = self._executor.pause_generations
        self.resume_generations = self._executor.resume_generations

    async def run(self) -> None:
        """Roll out every sample of the source."""
        await self._executor.run()

    async def close(self) -> None:
        """Remove environments that are left."""
        await self._flow.close()


def naive(max_concurrency: int) -> DriverFactory:
    """Drive with NaiveExecutor and `max_concurrency` live trajectories."""
    return lambda simulation, source: NaiveDriver(
        simulation, source, max_concurrency=max_concurrency
    )


class AgenticDriver:
    """Action-level scheduling: AgenticExecutor over ActionLevelSWEAgentFlow."""

    def __init__(
        self,
        simulation: Simulation,
        source: DataCoordinator,
        *,
        rollout: RolloutConfig,
        policy: Policy | None = None,
    ) -> None:
        hooks = CoordinatorHooks(source, LOCAL)
        scheduling = Scheduling(
            limits=make_limits(rollout),
            policy=policy or build_policy(rollout.policy, preemption=rollout.preemption),
            hooks=hooks,
            partial_rollout=rollout.partial_rollout,
        )
        self.flow = simulation.action_level_flow(scheduling)
        self._executor = AgenticExecutor(
            self.flow,
            source,
            renderer=simulation.renderer,
            runner=simulation.runner,
            settings=make_settings(rollout),
            get_priority_snapshot=source.get_priority_snapshot,
        )
        self.pause_dispatch = self._executor.pause_dispatch
        self.resume_dispatch = self._executor.resume_dispatch
        self.pause_generations = self._executor.pause_generations
        self.resume_generations = self._executor.resume_generations

    async def run(self) -> None:
        """Roll out every sample of the source."""
        await self._executor.run()

    async def close(self) -> None:
        """Remove environments that are left."""
        await self.flow.close()


def agentic(rollout: RolloutConfig, *, policy: Policy | None = None) -> DriverFactory:
    """Drive with AgenticExecutor as `rollout` says."""
    return lambda simulation, source: AgenticDriver(
        simulation, source, rollout=rollout, policy=policy
    )


class StartOrder(StrEnum):
    """Which episodes start first; the last two know the true lengths."""

    FCFS = "fcfs"
    LONGEST = "longest"
    SHORTEST = "shortest"


def ordered(
    traces: Sequence[EpisodeTrace], order: StartOrder, timings: EngineTimings
) -> list[EpisodeTrace]:
    """Return `traces` in the order in which they are to start."""

    def alone_s(trace: EpisodeTrace) -> float:
        return sum(turn_s(turn, timings) for turn in trace.work().turns)

    match order:
        case StartOrder.FCFS:
            return list(traces)
        case StartOrder.LONGEST:
            return sorted(traces, key=alone_s, reverse=True)
        case StartOrder.SHORTEST:
            return sorted(traces, key=alone_s)
        case other:
            assert_never(other)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationReport:
    """What a virtual run shows."""

    samples: Sequence[RolloutSample]
    """Ended samples, in the order they ended."""
    makespan_s: float
    """Virtual seconds until the last sample had ended."""
    mean_completion_s: float
    """Mean virtual time at which a sample ended."""
    bound: LowerBound
    waterfall: Waterfall | None
    """None with several replicas."""
    uses: Sequence[EngineUse]
    """What each replica did."""
    events_digest: str
    events: Sequence[bytes]
    """JSON lines, if they were kept."""
    cpu_s: float
    """Real processor seconds that it took."""

    @property
    def rho(self) -> float:
        """Makespan over lower bound."""
        return self.bound.rho(self.makespan_s)

    @property
    def turns(self) -> int:
        """Generations of the samples that ended."""
        return sum(sample.facts.turns for sample in self.samples)


def simulate(
    traces: Sequence[EpisodeTrace], config: SimulationConfig, make_driver: DriverFactory
) -> SimulationReport:
    """Run `traces` to their end in virtual time. Raises ConfigError, and bugs as they come."""
    return run_virtual(_run(traces, config, make_driver))


def source_of(
    simulation: Simulation, *, on_ended: Callable[[RolloutSample], None]
) -> DataCoordinator:
    """Return a coordinator over all samples of a simulation."""
    source = DataCoordinator(runner=simulation.runner, on_ended=on_ended)
    source.add(simulation.samples())
    source.finish()
    return source


async def _run(
    traces: Sequence[EpisodeTrace], config: SimulationConfig, make_driver: DriverFactory
) -> SimulationReport:
    began = time.process_time()
    simulation = Simulation(traces, config)
    ended: list[tuple[float, RolloutSample]] = []
    source = source_of(
        simulation, on_ended=lambda sample: ended.append((simulation.runner.now(), sample))
    )
    driver = make_driver(simulation, source)
    try:
        await driver.run()
    finally:
        await driver.close()
        await simulation.model.close()
    makespan_s = max(at for at, _ in ended)
    return SimulationReport(
        samples=[sample for _, sample in ended],
        makespan_s=makespan_s,
        mean_completion_s=sum(at for at, _ in ended) / len(ended),
        bound=simulation.bound(),
        waterfall=simulation.waterfall(makespan_s),
        uses=[engine.use for engine in simulation.engines],
        events_digest=simulation.events.digest,
        events=simulation.events.lines,
        cpu_s=time.process_time() - began,
    )
