"""Drivers: executors over a simulation's parts, interchangeable for a virtual run.

A driver rolls out every sample of a source, and can hold its generations back for a weight sync.
`naive` schedules whole trajectories, `action_level` single actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, assert_never

from agentflow.naive_flow import NaiveFlow
from agentflow.scheduling import Limits
from agentflow.sim.player import tokens_to_come
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow, Scheduling
from executors.naive import NaiveExecutor
from priority.policies import Fcfs, LongestPredictedFirst, ShortestPredictedFirst

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeAlias

    from agentflow.protocols import AgentFlow
    from agentflow.sim.setup import Simulation
    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId, RolloutSample, SyncMode
    from executors.source import InProcessSource
    from priority.policies import Policy

    DriverFactory: TypeAlias = Callable[[Simulation, InProcessSource], "Driver"]


class Driver(Protocol):
    """An executor of any kind."""

    async def run(self) -> None:
        """Roll out every sample of the source."""
        ...

    async def hold(self, mode: SyncMode) -> None:
        """Start no generation; return when an update in `mode` may begin."""
        ...

    async def release(self) -> None:
        """Go on."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes. Idempotent."""
        ...


class NaiveDriver:
    """Trajectory-level scheduling: NaiveExecutor over SWEAgentFlow."""

    def __init__(
        self, simulation: Simulation, source: InProcessSource, *, max_concurrency: int
    ) -> None:
        self._flow: AgentFlow = simulation.flow()
        self._executor = NaiveExecutor(
            NaiveFlow(self._flow),
            source,
            renderer=simulation.renderer,
            max_concurrency=max_concurrency,
        )

    async def run(self) -> None:
        """Roll out every sample of the source."""
        await self._executor.run()

    async def hold(self, mode: SyncMode) -> None:  # noqa: ARG002  # the engine's pause does it
        """Start no trajectory; the engine holds the generations of those that run."""
        self._executor.pause_dispatch()

    async def release(self) -> None:
        """Go on."""
        self._executor.resume_dispatch()

    async def close(self) -> None:
        """Remove environments that are left."""
        await self._flow.close()


def naive(max_concurrency: int) -> DriverFactory:
    """Drive with NaiveExecutor and `max_concurrency` live trajectories."""
    return lambda simulation, source: NaiveDriver(
        simulation, source, max_concurrency=max_concurrency
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionLevel:
    """How actions are scheduled; the limits are those of one engine."""

    limits: Limits
    policy: Policy
    submitted: int
    """Episodes that are handed to the flow at once, waiting for an environment included."""


class ActionLevelDriver:
    """Action-level scheduling: ActionLevelSWEAgentFlow, with predictions that are true."""

    def __init__(
        self, simulation: Simulation, source: InProcessSource, settings: ActionLevel
    ) -> None:
        scheduling = Scheduling(
            limits=settings.limits, policy=settings.policy, hooks=TruePredictions()
        )
        self._flow = ActionLevelSWEAgentFlow(
            *simulation.builders(),
            simulation.access(),
            scheduling=scheduling,
            runner=simulation.runner,
            events=simulation.events,
        )
        self._executor = NaiveExecutor(
            self._roll_out,  # type: ignore[arg-type]  # any callable of a sample serves
            source,
            renderer=simulation.renderer,
            max_concurrency=settings.submitted,
        )

    async def _roll_out(self, dc_sample: RolloutSample) -> RolloutSample:
        sample = await self._flow.preprocess(dc_sample)
        await self._flow.submit_sample(sample, dc_sample)
        return dc_sample

    async def run(self) -> None:
        """Roll out every sample of the source."""
        await self._executor.run()

    async def hold(self, mode: SyncMode) -> None:
        """Start no generation, and end, await or leave those in flight."""
        self._executor.pause_dispatch()
        await self._flow.pause_generations(mode)

    async def release(self) -> None:
        """Go on."""
        await self._flow.resume_generations()
        self._executor.resume_dispatch()

    async def close(self) -> None:
        """End the workers, and remove environments that are left."""
        await self._flow.close()


class TruePredictions:
    """Hooks that know what an episode will still generate."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Do nothing."""

    async def predict(self, sample: SWESample, *, gen_turn_seq: int) -> float | None:  # noqa: ARG002
        """Tokens that the trace has still to come."""
        return float(tokens_to_come(sample))


def action_level(settings: ActionLevel) -> DriverFactory:
    """Drive with ActionLevelSWEAgentFlow."""
    return lambda simulation, source: ActionLevelDriver(simulation, source, settings)


class Schedule(StrEnum):
    """Whole trajectories, or single actions in an order; predictions are true."""

    NAIVE = "naive"
    ACTION_FCFS = "action-fcfs"
    ACTION_LONGEST = "action-longest"
    ACTION_SHORTEST = "action-shortest"


_STARTED_AHEAD = 1.5
"""async_factor: environments per live episode, those that start ahead included."""


def driver_of(
    schedule: Schedule, *, slots: int, live: int, containers: int | None, submitted: int
) -> DriverFactory:
    """Return the driver of `schedule` with `live` episodes, on an engine of `slots` slots."""
    policy: Policy
    match schedule:
        case Schedule.NAIVE:
            return naive(live)
        case Schedule.ACTION_FCFS:
            policy = Fcfs()
        case Schedule.ACTION_LONGEST:
            policy = LongestPredictedFirst()
        case Schedule.ACTION_SHORTEST:
            policy = ShortestPredictedFirst()
        case other:
            assert_never(other)
    admitted = max(int(live * _STARTED_AHEAD), 1)
    limits = Limits(
        generations=slots,
        live=live,
        admitted=admitted if containers is None else min(admitted, containers),
        starts=admitted,
        commands=live,
        rewards=live,
    )
    return action_level(ActionLevel(limits=limits, policy=policy, submitted=submitted))
