"""Played episodes on real servers: production executors and client, agents that follow a script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentflow.config import RolloutConfig
from agentflow.engine.rids import RidFactory
from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.engine.turns import EngineAccess
from agentflow.naive_flow import NaiveFlow
from agentflow.runner import AsyncioRunner
from agentflow.sim.environment import EnvLimits, SimulatedEnvBuilder
from agentflow.sim.player import (
    StartTimes,
    TraceAgentBuilder,
    TraceRenderer,
    TraceRuntimeBuilder,
    sample_of,
)
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.flow import SWEAgentFlow
from agentflow.swe.scheduling_hooks import NoHooks
from agentflow.types import Cause, EpisodeId, SamplingParams
from executors.agentic import AgenticExecutor, AgenticSettings
from executors.data.coordinator import LOCAL, DataCoordinator
from executors.naive import NaiveExecutor
from executors.scheduling import scheduling_of
from executors.source import WorkerSource

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.swe.scheduling_hooks import Scheduling
    from agentflow.types import ContainerSpec, RolloutSample
    from benchmarks.peer_work import Episode, Workload

_AHEAD: Final = 10
"""One in so many generations more than slots: it waits at the server, so that a slot that is free
takes it without a round trip."""
POLICIES: Final = ("trajectory_slots", "trajectory_containers", "fcfs")


def trace_of(episode: Episode) -> EpisodeTrace:
    """Return an episode as the played agent takes it; there is no verdict to wait for."""
    turns = [
        TurnTrace(output=episode["tokens"], command_s=s, observation=episode["observation"])
        for s in episode["commands_s"]
    ]
    return EpisodeTrace(
        episode=EpisodeId(uid=episode["uid"]),
        prompt=episode["prompt"],
        turns=turns,
        start_s=episode["start_s"],
    )


async def play(
    workload: Workload, urls: tuple[str, ...], *, policy: str = "fcfs", vocab_size: int | None
) -> list[int]:
    """Play the workload; returns each episode's generated tokens."""
    runner = AsyncioRunner()
    engine = SglangEngine(SglangConfig(urls=urls, vocab_size=vocab_size))
    ended: list[RolloutSample] = []
    coordinator = DataCoordinator(runner=runner, on_ended=ended.append)
    for episode in workload["episodes"]:
        sample = sample_of(trace_of(episode))
        sample.sampling = SamplingParams(max_new_tokens=episode["tokens"], temperature=0.0)
        coordinator.add([sample])
    coordinator.finish()
    try:
        info = await runner.on_flow_worker(engine.info())
        renderer = TraceRenderer(info.vocab_size)
        access = EngineAccess(engine=engine, renderer=renderer, rids=RidFactory())
        await _drive(workload, policy, access=access, coordinator=coordinator, runner=runner)
    finally:
        await runner.on_flow_worker(engine.close())
        runner.close()
    endings = [sample.ending for sample in ended]
    failed = [end for end in endings if end is None or end.cause is not Cause.SUBMITTED]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(ended)} episodes failed: {failed[0]}")
    return [int(sample.response_mask.sum()) for sample in ended]


async def _drive(
    workload: Workload,
    policy: str,
    *,
    access: EngineAccess,
    coordinator: DataCoordinator,
    runner: AsyncioRunner,
) -> None:
    containers = workload["containers"]
    traces = [trace_of(episode) for episode in workload["episodes"]]
    envs = SimulatedEnvBuilder(_starts(traces), limits=EnvLimits(containers=containers))
    parts = (TraceAgentBuilder(), envs, TraceRuntimeBuilder(), access)
    source = WorkerSource(coordinator, LOCAL)
    flow: SWEAgentFlow
    executor: AgenticExecutor | NaiveExecutor
    if policy == "fcfs":
        flow = ActionLevelSWEAgentFlow(*parts, scheduling=_scheduling(workload), runner=runner)
        executor = AgenticExecutor(
            flow,
            source,
            renderer=access.renderer,
            runner=runner,
            settings=AgenticSettings(window=len(traces)),
        )
    else:
        flow = SWEAgentFlow(*parts, runner=runner)
        executor = NaiveExecutor(
            NaiveFlow(flow, runner=runner),
            source,
            renderer=access.renderer,
            max_concurrency=workload["slots"] if policy == "trajectory_slots" else containers,
        )
    try:
        await executor.run()
    finally:
        await flow.close()


def _scheduling(workload: Workload) -> Scheduling:
    live, slots = workload["containers"], workload["slots"]
    rollout = RolloutConfig(
        max_concurrency=live,
        gen_concurrency=min(live, slots + max(1, slots // _AHEAD)),
        async_factor=1.0,
        start_concurrency=live,
        reward_concurrency=live,
    )
    return scheduling_of(rollout, NoHooks())


def _starts(traces: list[EpisodeTrace]) -> Callable[[ContainerSpec], float]:
    """Return how long environments start; those of verdicts, which others lack, are up at once."""
    times = StartTimes(traces)
    return lambda spec: 0.0 if "agentflow.purpose" in spec.labels else times(spec)
