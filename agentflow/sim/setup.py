"""Simulation: engines, environments and the production flow for a list of traces.

What drives the samples, an executor of any kind, comes from outside: this package does not know it.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.errors import ConfigError
from agentflow.sim.bound import LowerBound, Resources, Waterfall, lower_bound, waterfall
from agentflow.sim.clock import VirtualRunner
from agentflow.sim.engine import SimulatedEngine
from agentflow.sim.engine_spec import EngineSpec, load_timings
from agentflow.sim.environment import EnvLimits, SimulatedEnvBuilder
from agentflow.sim.event_log import EventLog
from agentflow.sim.player import (
    StartTimes,
    TraceAgentBuilder,
    TraceLengths,
    TraceRenderer,
    TraceRuntimeBuilder,
    sample_of,
)
from agentflow.sim.replicas import ReplicaRouter
from agentflow.swe.flow import SWEAgentFlow
from agentflow.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.protocols import (
        AgentBuilder,
        ContainerEnvBuilder,
        EventSink,
        Model,
        RuntimeBuilder,
    )
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample

_NONCE = "5" * 12
"""Rids of two virtual runs are equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationConfig:
    """What a run is simulated on."""

    engine: EngineSpec
    replicas: int = 1
    limits: EnvLimits = field(default_factory=EnvLimits)
    seed: int = 0
    max_new_tokens: int = 4096
    """Budget of a turn; what admission reserves by."""
    keep_events: bool = False
    """Keep the event log's lines, not its digest alone."""
    digest_events: bool = True
    """False: not even its digest, where a run's time matters."""

    def __post_init__(self) -> None:
        for name in ("replicas", "max_new_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} must be at least 1")


def engine_spec(
    timings: str, *, slots: int, kv_tokens: int | None, context: int, page_size: int = 1
) -> EngineSpec:
    """Return an engine with shipped timings. Raises ConfigError for an unknown name."""
    row = load_timings()[timings]
    return EngineSpec(
        timings=row.timings,
        slots=slots,
        kv_tokens=kv_tokens,
        context_length=context,
        page_size=page_size,
        name=row.name,
    )


class Simulation:
    """The parts of one virtual run; make it inside the loop that runs it."""

    def __init__(
        self,
        traces: Sequence[EpisodeTrace],
        config: SimulationConfig,
        *,
        watch: EventSink | None = None,
    ) -> None:
        """`watch` hears every event, beside the log."""
        _check_fit(traces, config.engine)
        self.traces = traces
        self.config = config
        self.runner = VirtualRunner(seed=config.seed)
        self.events = EventLog(keep=config.keep_events, write=config.digest_events, watch=watch)
        lengths = TraceLengths(traces)
        self.engines = [
            SimulatedEngine(config.engine, lengths=lengths, events=self.events)
            for _ in range(config.replicas)
        ]
        self.model: Model = ReplicaRouter(self.engines)
        self.envs = SimulatedEnvBuilder(StartTimes(traces), limits=config.limits)
        self.env_builder: ContainerEnvBuilder = self.envs
        self.runtime_builder: RuntimeBuilder = TraceRuntimeBuilder()
        self.renderer = TraceRenderer(config.engine.vocab_size)

    def on_replica(self, index: int) -> Simulation:
        """Return this simulation as an executor sees it that has one of its engines to itself."""
        view = copy.copy(self)
        view.model = self.engines[index]
        return view

    def builders(self) -> tuple[AgentBuilder, ContainerEnvBuilder, RuntimeBuilder]:
        """Return what a flow is made of, beside its engine."""
        return TraceAgentBuilder(), self.env_builder, self.runtime_builder

    def flow(self) -> SWEAgentFlow:
        """Return the production flow over the simulated parts."""
        return SWEAgentFlow(*self.builders(), self.access(), runner=self.runner, events=self.events)

    def access(self) -> EngineAccess:
        """Return the engine as episodes see it."""
        return EngineAccess(
            engine=self.model,
            renderer=self.renderer,
            rids=RidFactory(_NONCE),
            sampling=SamplingParams(max_new_tokens=self.config.max_new_tokens),
        )

    def samples(self) -> list[RolloutSample]:
        """Return new samples, in the traces' order."""
        return [sample_of(trace) for trace in self.traces]

    # --- judging a schedule -------------------------------------------------------------------

    @cached_property
    def bound(self) -> LowerBound:
        """The lower bound of this workload on these resources."""
        spec = self.config.engine
        resources = Resources(
            timings=spec.timings,
            slots=spec.slots,
            kv_tokens=spec.kv_tokens,
            engines=self.config.replicas,
            containers=self.config.limits.containers,
        )
        return lower_bound([trace.work() for trace in self.traces], resources)

    def waterfall(self, makespan_s: float) -> Waterfall | None:
        """Explain a makespan; None with several replicas, for which there is no exact one."""
        if len(self.engines) != 1:
            return None
        engine = self.engines[0]
        return waterfall(
            makespan_s=makespan_s,
            use=engine.use,
            bound=self.bound,
            timings=engine.spec.timings,
        )


def _check_fit(traces: Sequence[EpisodeTrace], spec: EngineSpec) -> None:
    """Raise ConfigError when an episode would be cut short by the engine's size."""
    longest = max((trace.tokens for trace in traces), default=0)
    if longest > spec.context_length:
        raise ConfigError(
            f"context_length = {spec.context_length} cuts an episode of {longest} tokens"
        )
    if spec.kv_tokens is not None and longest > spec.kv_tokens - 2:
        raise ConfigError(
            f"kv_tokens = {spec.kv_tokens} must be at least {longest + 2}, for the longest episode"
        )
