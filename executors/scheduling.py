"""From the section `rollout` of a configuration to how a flow schedules and an executor works."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.policies import build_policy
from agentflow.scheduling import Limits
from agentflow.swe.scheduling_hooks import Scheduling, SchedulingHooks
from executors.agentic import MAX_ASYNC_FACTOR, AgenticSettings
from priority.policies import age_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.config import AgentflowConfig, RolloutConfig

REWARDS_AHEAD = 2
"""Finished episodes that may wait for each judge. They hold no environment, so they must not keep
new ones from starting; without a bound, a slow judge would let them pile up."""


def shares(rollout: RolloutConfig, replicas: int) -> list[RolloutConfig]:
    """Share a run's limits out among the workers of its replicas, as evenly as whole numbers go.

    Raises ConfigError when there is not an episode and a generation for each.
    """
    for name in ("max_concurrency", "gen_concurrency"):
        limit = getattr(rollout, name)
        if limit is not None and limit < replicas:
            raise ConfigError(
                f"rollout.{name}: {limit} is less than the {replicas} replicas of engine.url; it"
                " must be at least 1 for each"
            )
    names = [name for name in _SHARED if getattr(rollout, name) is not None]
    return [
        rollout.model_copy(
            update={name: share(getattr(rollout, name), replicas, index) for name in names}
        )
        for index in range(replicas)
    ]


_SHARED = (
    "max_concurrency",
    "gen_concurrency",
    "start_concurrency",
    "env_concurrency",
    "reward_concurrency",
)


def share(total: int, replicas: int, index: int) -> int:
    """Give one worker's share of a limit, which is at least 1."""
    return max(1, total // replicas + (index < total % replicas))


def make_limits(rollout: RolloutConfig) -> Limits:
    """Give the scheduler's limits."""
    live = rollout.max_concurrency
    generations = rollout.gen_concurrency or live
    return Limits(
        generations=math.ceil(generations * (1 + rollout.submit_ahead)),
        live=live,
        admitted=math.ceil(live * min(rollout.async_factor, MAX_ASYNC_FACTOR)),
        starts=rollout.start_concurrency,
        commands=rollout.env_concurrency or live,
        rewards=rollout.reward_concurrency,
        preemptions=rollout.max_preemptions,
        age_s=math.inf if rollout.age_s is None else rollout.age_s,
        together=max(1, int(generations * rollout.prefill_together)),
    )


def make_scheduling(config: AgentflowConfig, hooks: SchedulingHooks) -> Scheduling:
    """Say how the flow schedules. Raises ConfigError for a policy that cannot be made."""
    return scheduling_of(config.rollout, hooks, python_path=config.flow.python_path)


def scheduling_of(
    rollout: RolloutConfig,
    hooks: SchedulingHooks,
    *,
    python_path: str | Sequence[str] | None = None,
) -> Scheduling:
    """Say how a flow schedules by a section `rollout`. Raises ConfigError as above."""
    policy = build_policy(rollout.policy, preemption=rollout.preemption, python_path=python_path)
    limits = make_limits(rollout)
    return Scheduling(
        limits=replace(limits, age_s=age_of(policy)) if rollout.age_s is None else limits,
        policy=policy,
        hooks=hooks,
        partial_rollout=rollout.partial_rollout,
        kv_share=rollout.kv_share,
    )


def make_settings(rollout: RolloutConfig, *, alone: bool = True) -> AgenticSettings:
    """Say how the executor works.

    A worker that is `alone` takes more than it can begin, for its policy to choose from. One of
    several holds nothing that another could begin.
    """
    limits = make_limits(rollout)
    ahead = REWARDS_AHEAD * limits.rewards
    return AgenticSettings(
        window=limits.admitted + ahead,
        judged=0 if alone else ahead,
        max_attempts=rollout.max_attempts,
        status_s=rollout.status_s,
        stall_s=rollout.stall_s,
    )


def scheduling_facts(workers: Mapping[str, RolloutConfig]) -> dict[str, Any]:
    """Give what the event `run_started` says of limits and order; None is no limit of its own.

    `workers` have each its share of the limits; what is said is their sum, and that of each.
    """
    each = {name: _facts_of(rollout) for name, rollout in workers.items()}
    first = next(iter(each.values()))
    summed = {key: sum(facts[key] for facts in each.values()) for key in first.keys() & _LIMITS}
    return {**first, **summed, "workers": each}


_LIMITS = frozenset({"window", "generations", "live", "admitted", "starts", "commands", "rewards"})


def _facts_of(rollout: RolloutConfig) -> dict[str, Any]:
    if not rollout.enable_action_level_scheduling:
        return {"by_action": False, "generations": rollout.max_concurrency}
    limits = make_limits(rollout)
    return {
        "by_action": True,
        "policy": rollout.policy["name"],
        "preemption": rollout.preemption,
        "age_s": rollout.age_s,
        "window": make_settings(rollout).window,
        "generations": limits.generations,
        "live": limits.live,
        "admitted": limits.admitted,
        "starts": limits.starts,
        "commands": limits.commands,
        "rewards": limits.rewards,
    }


def action_level_twins(name: str, config: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Give the flow and agent that schedule actions for the built-in ones that do not."""
    agent = config.get("agent", {})
    twin = {"minisweagent": "action_level_minisweagent"}.get(agent.get("name"))
    if twin is not None:
        config = {**config, "agent": {**agent, "name": twin}}
    return ("action_level_swe" if name == "swe" else name), config
