"""Drivers: executors over a simulation's parts, interchangeable for a virtual run.

A driver rolls out every sample of a source, and can be paused for a weight sync.
`naive` schedules whole trajectories, `action_level` single actions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from agentflow.config import RolloutConfig
from agentflow.errors import ConfigError
from agentflow.naive_flow import NaiveFlow
from agentflow.sim.player import tokens_to_come
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.scheduling_hooks import NoHooks, Scheduling
from executors.agentic import AgenticExecutor, AgenticSettings
from executors.naive import NaiveExecutor
from executors.scheduling import make_settings, scheduling_of, share, shares
from executors.source import WorkerSource
from executors.virtual.replica_drivers import one_each
from executors.weight_sync import Pausable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import TypeAlias

    from agentflow.protocols import AgentFlow
    from agentflow.scheduling import Limits
    from agentflow.sim.setup import Simulation
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId
    from executors.data.coordinator import DataCoordinator
    from priority.policies import Policy
    from priority.snapshot import PrioritySnapshot

    DriverFactory: TypeAlias = Callable[[Simulation, DataCoordinator, str], "Driver"]
    """Makes the worker of that name."""


class Driver(Pausable, Protocol):
    """An executor of any kind."""

    @property
    def name(self) -> str:
        """The worker that it is to the coordinator."""
        ...

    @property
    def slots(self) -> int:
        """Samples that it has under way at once."""
        ...

    async def run(self) -> None:
        """Roll out every sample of the source."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes. Idempotent."""
        ...


class _Driver:
    """An executor and its flow as a `Driver`."""

    def __init__(
        self, executor: NaiveExecutor | AgenticExecutor, flow: AgentFlow, *, name: str
    ) -> None:
        self.name = name
        self.slots = executor.slots
        self._executor = executor
        self._flow = flow
        self.pause_dispatch = executor.pause_dispatch
        self.resume_dispatch = executor.resume_dispatch
        self.pause_generations = executor.pause_generations
        self.resume_generations = executor.resume_generations

    async def run(self) -> None:
        """Roll out every sample of the source."""
        await self._executor.run()

    async def close(self) -> None:
        """End what runs, and remove environments that are left."""
        await self._flow.close()


class NaiveDriver(_Driver):
    """Trajectory-level scheduling: NaiveExecutor over SWEAgentFlow."""

    def __init__(
        self, simulation: Simulation, source: DataCoordinator, name: str, *, max_concurrency: int
    ) -> None:
        flow = simulation.flow()
        executor = NaiveExecutor(
            NaiveFlow(flow),
            WorkerSource(source, name),
            renderer=simulation.renderer,
            max_concurrency=max_concurrency,
        )
        super().__init__(executor, flow, name=name)


def naive(max_concurrency: int) -> DriverFactory:
    """Drive with NaiveExecutor and `max_concurrency` live trajectories."""
    return lambda simulation, source, name: NaiveDriver(
        simulation, source, name, max_concurrency=max_concurrency
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLevel:
    """How actions are scheduled; the limits are those of one engine."""

    limits: Limits
    policy: Policy
    submitted: int
    """Episodes that are handed to the flow at once, waiting for an environment included."""
    judged: int = 0
    """Of these, places for episodes that only wait to be judged, and for no others."""
    kv_share: float | None = None
    """Share of KV memory that live contexts may take; None: all that there are."""
    foresees: bool = True
    """Whether the length of every episode is known, from its start on; False: nothing is."""
    partial_rollout: bool = True
    max_attempts: int = 32


class ActionLevelDriver(_Driver):
    """Action-level scheduling: AgenticExecutor, with predictions that are true, or none."""

    def __init__(
        self, simulation: Simulation, source: DataCoordinator, name: str, settings: ActionLevel
    ) -> None:
        truth = TruePredictions(simulation.traces, source.get_priority_snapshot)
        flow = ActionLevelSWEAgentFlow(
            *simulation.builders(),
            simulation.access(),
            scheduling=Scheduling(
                limits=settings.limits,
                policy=settings.policy,
                hooks=truth if settings.foresees else NoHooks(),
                partial_rollout=settings.partial_rollout,
                kv_share=settings.kv_share,
            ),
            runner=simulation.runner,
            events=simulation.events,
        )
        executor = AgenticExecutor(
            flow,
            WorkerSource(source, name),
            renderer=simulation.renderer,
            runner=simulation.runner,
            settings=AgenticSettings(
                window=settings.submitted,
                judged=settings.judged,
                max_attempts=settings.max_attempts,
                status_s=_STATUS_S,
                stall_s=_STALL_S,
            ),
            get_priority_snapshot=(
                truth.snapshot if settings.foresees else source.get_priority_snapshot
            ),
        )
        super().__init__(executor, flow, name=name)


_STATUS_S, _STALL_S = 1000.0, 100_000.0
"""Virtual seconds: looked at seldom, and given up long after the slowest command."""


class TruePredictions:
    """Hooks that know what an episode will still generate, and a snapshot that knew it before."""

    def __init__(
        self, traces: Sequence[EpisodeTrace], get_snapshot: Callable[[], PrioritySnapshot]
    ) -> None:
        self._get_snapshot = get_snapshot
        self._lengths = {
            trace.episode: float(sum(turn.output for turn in trace.turns)) for trace in traces
        }

    def snapshot(self) -> PrioritySnapshot:
        """What a coordinator knows, and the length of every episode."""
        return replace(self._get_snapshot(), predicted=self._lengths)

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Do nothing."""

    async def predict(self, sample: SWESample, *, gen_turn_seq: int) -> float | None:  # noqa: ARG002
        """Tokens that the trace has still to come."""
        return float(tokens_to_come(sample))


def action_level_of(
    rollout: RolloutConfig, *, submitted: int, foresees: bool = True
) -> ActionLevel:
    """Schedule as a run with this section of a configuration does."""
    scheduling = scheduling_of(rollout, NoHooks())
    return ActionLevel(
        limits=scheduling.limits,
        policy=scheduling.policy,
        submitted=submitted,
        kv_share=scheduling.kv_share,
        foresees=foresees,
        partial_rollout=scheduling.partial_rollout,
        max_attempts=rollout.max_attempts,
    )


def action_level(settings: ActionLevel) -> DriverFactory:
    """Drive with AgenticExecutor."""
    return lambda simulation, source, name: ActionLevelDriver(simulation, source, name, settings)


class Schedule(StrEnum):
    """Whole trajectories, or single actions in an order; predictions are true."""

    NAIVE = "naive"
    ACTION_FCFS = "action-fcfs"
    ACTION_LONGEST = "action-longest"
    ACTION_SHORTEST = "action-shortest"
    ACTION_DRAWN = "action-drawn"
    """With limits, policy and preemption drawn by the seed; for fault runs."""


_POLICIES = {
    Schedule.ACTION_FCFS: "fcfs",
    Schedule.ACTION_LONGEST: "longest_predicted_first",
    Schedule.ACTION_SHORTEST: "shortest_predicted_first",
}


def driver_of(
    schedule: Schedule,
    *,
    slots: int,
    live: int,
    containers: int | None,
    submitted: int,
    replicas: int = 1,
) -> DriverFactory:
    """Return the driver of `schedule` with `live` episodes, on an engine of `slots` slots.

    What is not said here is as in a run whose configuration does not say it either; but as many
    environments start, and as many episodes are judged, as there are episodes. With `replicas` each
    has a worker with its share of all that, as in a run: it takes no more than it can begin.
    Otherwise the flow gets `submitted` at once, for its policy to choose from. Raises ConfigError.
    """
    if schedule is Schedule.ACTION_DRAWN:
        raise ConfigError("action-drawn: is for fault runs, whose seeds draw it")
    rollout = _rollout(schedule, slots=slots, live=live, containers=containers)
    if schedule is Schedule.NAIVE:
        workers = [naive(part.max_concurrency) for part in shares(rollout, replicas)]
    elif replicas == 1:
        settings = action_level_of(rollout, submitted=submitted)
        workers = [action_level(_within(settings, containers))]
    else:
        workers = [
            action_level(
                _no_more_than_begun(part, containers and share(containers, replicas, index))
            )
            for index, part in enumerate(shares(rollout, replicas))
        ]
    return workers[0] if replicas == 1 else one_each(workers)


def _rollout(schedule: Schedule, *, slots: int, live: int, containers: int | None) -> RolloutConfig:
    if schedule is Schedule.NAIVE:
        return RolloutConfig(max_concurrency=live)
    return RolloutConfig(
        max_concurrency=live,
        gen_concurrency=min(slots, live),
        start_concurrency=live if containers is None else min(live, containers),
        reward_concurrency=live,
        policy={"name": _POLICIES[schedule]},
    )


def _within(settings: ActionLevel, containers: int | None) -> ActionLevel:
    if containers is None:
        return settings
    limits = settings.limits
    return replace(settings, limits=replace(limits, admitted=min(limits.admitted, containers)))


def _no_more_than_begun(rollout: RolloutConfig, containers: int | None) -> ActionLevel:
    """Give the settings of one of several workers."""
    judged = make_settings(rollout, alone=False).judged
    settings = _within(action_level_of(rollout, submitted=0), containers)
    return replace(settings, submitted=settings.limits.admitted + judged, judged=judged)
