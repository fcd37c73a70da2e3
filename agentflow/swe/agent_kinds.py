"""What an agent can do beyond running a whole episode; asked of its class once, as that is slow."""

from __future__ import annotations

import functools
from typing import Any

from agentflow.protocols import ActionLevelAgent, EnvAware


def driven_by_actions(agent: object) -> bool:
    """Whether an agent takes single actions."""
    kind: Any = type(agent)
    return _fits(kind, ActionLevelAgent)


def is_env_aware(agent: object) -> bool:
    """Whether an agent wants to see its environment before its first turn."""
    kind: Any = type(agent)
    return _fits(kind, EnvAware)


@functools.cache
def _fits(kind: Any, protocol: Any) -> bool:
    return issubclass(kind, protocol)
