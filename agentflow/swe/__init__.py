"""Software-engineering episodes: an agent, an environment and a runtime make one flow.

    agent        turns generations into commands          BUILTIN_PROVIDERS["agent"]
    environment  where the commands run                   BUILTIN_PROVIDERS["environment"]
    runtime      bootstraps the task, judges the patch    BUILTIN_PROVIDERS["runtime"]

A provider's name is one of these, or a user's own `package.module:Builder`. Nothing is imported
before it is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.registry import accepted_keywords, import_any, plugin_boundary

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import (
        AgentBuilder,
        AgentFlow,
        ContainerEnvBuilder,
        EventSink,
        Keeper,
        Runner,
        RuntimeBuilder,
    )
    from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
    from agentflow.swe.sample import SWESample
    from agentflow.swe.scheduling_hooks import Scheduling

BUILTIN_PROVIDERS: dict[str, dict[str, str]] = {
    "agent": {
        "minisweagent": ".swe.agent.mini:MiniSWEAgentBuilder",
        "action_level_minisweagent": ".swe.agent.action_level:ActionLevelMiniSWEAgentBuilder",
    },
    "environment": {
        "local": ".swe.environment.local:LocalEnvBuilder",
        "docker": ".swe.environment.docker:DockerEnvBuilder",
    },
    "runtime": {"swe": ".swe.runtime.pytest_runtime:PytestRuntimeBuilder"},
}
"""Section → provider name → `module:Builder`; a leading dot means the package agentflow."""


def agentflow(
    config: Mapping[str, Any],
    model: EngineAccess,
    *,
    runner: Runner | None = None,
    events: EventSink | None = None,
    on_turn: Callable[[SWESample], None] | None = None,
    keeper: Keeper | None = None,
    run_id: str | None = None,
    env: ContainerEnvBuilder | None = None,
) -> AgentFlow:
    """Build a trajectory-level SWEAgentFlow.

    `config` has the sections `agent`, `environment` and `runtime`, each a mapping with a `name` and
    that provider's own keys, and optionally `python_path`. `model` is the engine as episodes reach
    it; `on_turn` sees the sample after every step, and `keeper` keeps it. `env` is another flow's
    builder, to share. Raises ConfigError naming the section, the provider and the cause.
    """
    from agentflow.swe.flow import SWEAgentFlow  # noqa: PLC0415  # providers load when named

    agent, builder, runtime = _builders(config, runner=runner, run_id=run_id, env=env)
    return SWEAgentFlow(
        agent,
        builder,
        runtime,
        model,
        runner=runner,
        events=events,
        on_turn=on_turn,
        keeper=keeper,
    )


def action_level_agentflow(
    config: Mapping[str, Any],
    model: EngineAccess,
    *,
    scheduling: Scheduling | None = None,
    runner: Runner | None = None,
    events: EventSink | None = None,
    on_turn: Callable[[SWESample], None] | None = None,
    keeper: Keeper | None = None,
    run_id: str | None = None,
    env: ContainerEnvBuilder | None = None,
) -> ActionLevelSWEAgentFlow:
    """Build an ActionLevelSWEAgentFlow, which schedules its episodes' actions one by one.

    Takes what `agentflow` takes, and how to schedule; `agent` must be driven by actions, as
    `action_level_minisweagent` is. Raises ConfigError as `agentflow` does.
    """
    from agentflow.swe.action_level_flow import (  # noqa: PLC0415  # as above
        ActionLevelSWEAgentFlow,
    )

    if scheduling is None:
        raise ConfigError("needs rollout.enable_action_level_scheduling: true")
    agent, builder, runtime = _builders(config, runner=runner, run_id=run_id, env=env)
    return ActionLevelSWEAgentFlow(
        agent,
        builder,
        runtime,
        model,
        scheduling=scheduling,
        runner=runner,
        events=events,
        on_turn=on_turn,
        keeper=keeper,
    )


def _builders(
    config: Mapping[str, Any],
    *,
    runner: Runner | None,
    run_id: str | None,
    env: ContainerEnvBuilder | None,
) -> tuple[AgentBuilder, ContainerEnvBuilder, RuntimeBuilder]:
    def build(section: str) -> Any:
        return build_provider(config, section, runner=runner, run_id=run_id)

    return build("agent"), build("environment") if env is None else env, build("runtime")


def build_provider(
    config: Mapping[str, Any],
    section: str,
    *,
    runner: Runner | None = None,
    run_id: str | None = None,
) -> Any:
    """Make the builder that the section `section` of a flow's configuration describes.

    A builder whose constructor takes a `runner` or a `run_id` gets the flow's. Raises ConfigError.
    """
    cls = import_provider(config, section)
    with plugin_boundary(f"{section} {config[section]['name']!r}"):
        keywords = {"runner": runner, "run_id": run_id}
        return cls(config[section], **accepted_keywords(cls, keywords))


def import_provider(config: Mapping[str, Any], section: str) -> Any:
    """Import, without building it, the builder class that a section names."""
    subconf = config.get(section)
    if not isinstance(subconf, dict) or not isinstance(subconf.get("name"), str):
        raise ConfigError(f"{section}: {subconf!r} must be a mapping with a `name`")
    return import_any(
        subconf["name"],
        builtin=BUILTIN_PROVIDERS[section],
        path=config.get("python_path"),
        kind=section,
    )
