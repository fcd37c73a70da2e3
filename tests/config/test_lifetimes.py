"""A container's time to live: longer than the deadline and the scoring of every episode."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from agentflow.config_loading import Sources, check
from agentflow.errors import ConfigError
from agentflow.swe.environment.docker.config import DockerConfig
from executors.lifetimes import MARGIN_S, check_lifetimes, with_lifetimes
from executors.runs.session import Rollout

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.config import AgentflowConfig

TASKS: list[dict[str, Any]] = [{"eval_timeout_s": 60}, {"eval_timeout_s": 900}, {}]


def config(environment: dict[str, Any], **agent: Any) -> AgentflowConfig:
    """Make a configuration whose runs stand still for 100 s at most."""
    flow = {"environment": environment, "agent": agent}
    return check(Sources(values={"flow": flow, "rollout": {"stall_s": 100.0}}))


def ttl_s(config: AgentflowConfig) -> Any:
    """Read what containers get."""
    return config.flow.environment["ttl_s"]


def test_what_is_not_said_is_long_enough() -> None:
    """The usual time, or more where deadline, scoring and the margin need more."""
    usual = DockerConfig().ttl_s
    assert ttl_s(with_lifetimes(config({"name": "docker"}), TASKS)) == usual
    long = config({"name": "docker"}, wall_time_limit_seconds=usual)
    assert ttl_s(with_lifetimes(long, TASKS)) == usual + 900 + MARGIN_S
    hour = [{"eval_timeout_s": 86400.0}]
    assert ttl_s(with_lifetimes(config({"name": "docker"}), hour)) == 100 + 86400 + MARGIN_S


@pytest.mark.parametrize(
    ("agent", "needed", "deadline"),
    [
        ({}, 100 + 900 + MARGIN_S, "rollout.stall_s 100"),
        (
            {"wall_time_limit_seconds": 500},
            500 + 900 + MARGIN_S,
            "flow.agent.wall_time_limit_seconds 500",
        ),
    ],
)
def test_one_that_is_too_short_is_refused(
    agent: dict[str, Any], needed: int, deadline: str
) -> None:
    """The error names the field, its value, what would be right, and why; a second more is."""
    short = config({"name": "docker", "ttl_s": needed - 1}, **agent)
    with pytest.raises(ConfigError) as error:
        with_lifetimes(short, TASKS)
    said = str(error.value)
    assert said.startswith(f"flow.environment.ttl_s: {needed - 1}: ")
    assert f"at least {needed}: {deadline} + eval_timeout_s 900 + {MARGIN_S}" in said
    enough = config({"name": "docker", "ttl_s": needed}, **agent)
    assert with_lifetimes(enough, TASKS) == enough
    with pytest.raises(ConfigError, match="at least"):  # as when a trainer submits its prompts
        check_lifetimes(enough, [{"eval_timeout_s": 901}])


def test_other_environments_have_none() -> None:
    """Nothing is added for them."""
    local = config({"name": "local"})
    assert with_lifetimes(local, TASKS) is local
    check_lifetimes(local, TASKS)


async def test_a_run_is_refused_before_it_starts(tmp_path: Path) -> None:
    """`run` and `run --check` say it and touch nothing."""
    values = {
        "run": {"out": str(tmp_path / "run")},
        "tasks": {"source": "bundled"},
        "engine": {"url": "scripted:noop"},
        "flow": {"environment": {"name": "docker", "ttl_s": 600}},
    }
    rollout = Rollout(check(Sources(values=values)))
    with pytest.raises(ConfigError, match=r"flow\.environment\.ttl_s: 600: .* at least 7860"):
        await rollout.run()
    assert not rollout.dir.path.exists()
