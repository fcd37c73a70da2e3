"""Lifetimes: that a container bears more silence than its episode and its judge may take.

A container that hears nothing for `flow.environment.ttl_s` ends itself, so that a dead run leaves
none. Nothing in a living run may be silent for so long; that is decided here, before it starts.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentflow.config import AgentflowConfig

    Config = TypeVar("Config", bound=AgentflowConfig)

MARGIN_S = 600
"""Beyond deadline and scoring: a judge waits for its place and starts, with minutes to spare."""


def with_lifetimes(config: Config, tasks: Iterable[Mapping[str, Any]]) -> Config:
    """Give containers that name no `ttl_s` one that is long enough for `tasks`.

    Raises ConfigError when the one that is named is too short.
    """
    environment = config.flow.environment
    if environment["name"] != "docker":
        return config
    if "ttl_s" in environment:
        check_lifetimes(config, tasks)
        return config
    from agentflow.swe.environment.docker.config import DockerConfig  # noqa: PLC0415  # the SDK

    default: int = DockerConfig.model_fields["ttl_s"].default
    ttl_s = max(default, math.ceil(_needed(config, tasks)[0]))
    flow = config.flow.model_copy(update={"environment": {**environment, "ttl_s": ttl_s}})
    return config.model_copy(update={"flow": flow})


def check_lifetimes(config: AgentflowConfig, tasks: Iterable[Mapping[str, Any]]) -> None:
    """Raise ConfigError when containers would end under one of `tasks`."""
    environment = config.flow.environment
    ttl_s = environment.get("ttl_s")
    if environment["name"] != "docker" or not isinstance(ttl_s, int):
        return  # a value of another kind is the environment's own to refuse
    needed_s, why = _needed(config, tasks)
    if ttl_s < needed_s:
        raise ConfigError(
            f"flow.environment.ttl_s: {ttl_s}: containers would end before what needs them; it must"
            f" be at least {math.ceil(needed_s)}: {why} + {MARGIN_S} to spare. Raise it, leave it"
            " out, or lower those"
        )


def _needed(config: AgentflowConfig, tasks: Iterable[Mapping[str, Any]]) -> tuple[float, str]:
    """Return the seconds, and what they are the sum of."""
    from agentflow.swe.tasks.schema import SWETask  # noqa: PLC0415  # with pydantic's models

    usual: float = SWETask.model_fields["eval_timeout_s"].default
    deadline_s, said = config.rollout.stall_s, "rollout.stall_s"
    limit_s = _seconds(config.flow.agent.get("wall_time_limit_seconds"), 0.0)
    if limit_s > deadline_s:
        deadline_s, said = limit_s, "flow.agent.wall_time_limit_seconds"
    scoring_s = max((_seconds(task.get("eval_timeout_s"), usual) for task in tasks), default=usual)
    why = f"{said} {deadline_s:g} + eval_timeout_s {scoring_s:g}"
    return deadline_s + scoring_s + MARGIN_S, why


def _seconds(value: object, default: float) -> float:
    return float(value) if isinstance(value, int | float) else default
