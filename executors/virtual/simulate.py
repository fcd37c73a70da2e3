"""Whole runs in virtual time: a list of traces through an executor, judged by the lower bound."""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, assert_never

from agentflow.sim.bound import turn_s
from agentflow.sim.clock import run_virtual
from agentflow.sim.setup import Simulation
from executors.data.coordinator import LOCAL, DataCoordinator

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentflow.sim.bound import LowerBound, Waterfall
    from agentflow.sim.engine_spec import EngineTimings
    from agentflow.sim.sequence import EngineUse
    from agentflow.sim.setup import SimulationConfig
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample
    from executors.data.observers import BookObserver
    from executors.virtual.drivers import DriverFactory


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


_MAX_ATTEMPTS = 10_000
"""Never: in the weather of a fault run, an episode is to be begun until it comes through."""


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
    simulation: Simulation,
    *,
    on_ended: Callable[[RolloutSample], None],
    observer: BookObserver | None = None,
) -> DataCoordinator:
    """Return a coordinator over all samples of a simulation."""
    source = DataCoordinator(
        runner=simulation.runner, on_ended=on_ended, max_attempts=_MAX_ATTEMPTS, observer=observer
    )
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
    driver = make_driver(simulation, source, LOCAL)
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
        bound=simulation.bound,
        waterfall=simulation.waterfall(makespan_s),
        uses=[engine.use for engine in simulation.engines],
        events_digest=simulation.events.digest,
        events=simulation.events.lines,
        cpu_s=time.process_time() - began,
    )
