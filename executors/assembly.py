"""Puts flows and workers together, one for each replica of an engine, for whoever drives them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentflow.registry import load_agentflow
from agentflow.swe.flow import SWEAgentFlow
from executors.data.coordinator import LOCAL
from executors.hooks import CoordinatorHooks
from executors.scheduling import action_level_twins, make_scheduling, shares
from executors.worker import RolloutWorker

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AsyncExitStack

    from agentflow.config import AgentflowConfig, RolloutConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import AgentFlow, ContainerEnvBuilder, EventSink, Keeper, Runner
    from agentflow.swe.sample import SWESample
    from agentflow.swe.scheduling_hooks import SchedulingHooks
    from executors.data.coordinator import DataCoordinator
    from executors.runs.token_meter import MeteredModel


def load_flow(
    config: AgentflowConfig,
    access: EngineAccess,
    hooks: SchedulingHooks,
    *,
    runner: Runner,
    events: EventSink,
    on_turn: Callable[[SWESample], None] | None = None,
    keeper: Keeper | None = None,
    run_id: str | None = None,
    env: ContainerEnvBuilder | None = None,
) -> AgentFlow:
    """Build the configured flow; `hooks` are for one that schedules actions. Raises ConfigError.

    `env` is another flow's environment builder, to share.
    """
    name, section, scheduling = config.flow.name, config.flow.model_dump(), None
    if config.rollout.enable_action_level_scheduling:
        name, section = action_level_twins(name, section)
        scheduling = make_scheduling(config, hooks)
    return load_agentflow(
        name,
        section,
        access,
        runner=runner,
        events=events,
        on_turn=on_turn,
        keeper=keeper,
        run_id=run_id,
        scheduling=scheduling,
        env=env,
    )


def limits_by_worker(config: AgentflowConfig, replicas: int) -> dict[str, RolloutConfig]:
    """Name the worker of each replica, with its share of the run's limits. Raises ConfigError."""
    parts = shares(config.rollout, replicas)
    if replicas == 1:
        return {LOCAL: parts[0]}
    return {f"replica-{index}": part for index, part in enumerate(parts)}


def make_workers(
    config: AgentflowConfig,
    access: EngineAccess,
    meter: MeteredModel,
    coordinator: DataCoordinator,
    *,
    stack: AsyncExitStack,
    runner: Runner,
    load: Callable[..., AgentFlow] = load_flow,
) -> list[RolloutWorker]:
    """Make a worker, with a flow of its own, for every replica of the engine. Raises ConfigError.

    `load` is `load_flow` with its keywords, but for `env`. `stack` closes them, last one first: the
    first one's flow has the environments' builder, which the others share.
    """
    engines, workers = meter.replicas(), list[RolloutWorker]()
    env: ContainerEnvBuilder | None = None
    limits = limits_by_worker(config, len(engines))
    for (name, rollout), engine in zip(limits.items(), engines, strict=True):
        flow = load(
            config.model_copy(update={"rollout": rollout}),
            replace(access, engine=engine),
            CoordinatorHooks(coordinator, name),
            env=env,
        )
        if isinstance(flow, SWEAgentFlow):
            if flow.env is env:
                flow.share_env()
            env = flow.env
        worker = RolloutWorker(
            name,
            flow=flow,
            coordinator=coordinator,
            renderer=access.renderer,
            runner=runner,
            config=rollout,
            alone=len(engines) == 1,
        )
        stack.push_async_callback(worker.close)
        workers.append(worker)
    return workers
