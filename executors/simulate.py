"""Whole runs in virtual time: a list of traces through an executor, judged by the lower bound."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.naive_flow import NaiveFlow
from agentflow.sim.clock import run_virtual
from agentflow.sim.setup import Simulation
from executors.naive import NaiveExecutor
from executors.source import InProcessSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.sim.bound import LowerBound, Waterfall
    from agentflow.sim.sequence import EngineUse
    from agentflow.sim.setup import SimulationConfig
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample


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


def simulate_naive(
    traces: Sequence[EpisodeTrace], config: SimulationConfig, *, max_concurrency: int
) -> SimulationReport:
    """Run `traces` through NaiveExecutor with `max_concurrency` live trajectories."""
    began = time.process_time()
    return run_virtual(_run_naive(traces, config, max_concurrency, began))


async def _run_naive(
    traces: Sequence[EpisodeTrace], config: SimulationConfig, max_concurrency: int, began: float
) -> SimulationReport:
    simulation = Simulation(traces, config)
    ended: list[tuple[float, RolloutSample]] = []
    source = InProcessSource(
        simulation.samples(),
        on_ended=lambda sample: ended.append((simulation.runner.now(), sample)),
    )
    flow = simulation.flow()
    executor = NaiveExecutor(
        NaiveFlow(flow), source, renderer=simulation.renderer, max_concurrency=max_concurrency
    )
    try:
        await executor.run()
    finally:
        await flow.close()
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
