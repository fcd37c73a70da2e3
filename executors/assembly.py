"""Puts a flow, its worker and the weight sync over them together, for whoever drives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.registry import load_agentflow
from executors.scheduling import action_level_twins, make_scheduling
from executors.worker import RolloutWorker

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import AgentFlow, EventSink, Keeper, Runner
    from agentflow.swe.sample import SWESample
    from agentflow.swe.scheduling_hooks import SchedulingHooks
    from executors.data.coordinator import DataCoordinator


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
) -> AgentFlow:
    """Build the configured flow; `hooks` are for one that schedules actions. Raises ConfigError."""
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
    )


def make_worker(
    config: AgentflowConfig,
    access: EngineAccess,
    coordinator: DataCoordinator,
    *,
    worker: str,
    flow: AgentFlow,
    runner: Runner,
) -> RolloutWorker:
    """Make the worker that drives the flow. Raises ConfigError."""
    return RolloutWorker(
        worker,
        flow=flow,
        coordinator=coordinator,
        renderer=access.renderer,
        runner=runner,
        config=config.rollout,
    )
