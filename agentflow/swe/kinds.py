"""What agents and environments can do beyond the least; asked of a class once, as that is slow."""

from __future__ import annotations

import functools
from typing import Any

from agentflow.protocols import ActionLevelAgent, EnvAware, Mortal


def driven_by_actions(agent: object) -> bool:
    """Whether an agent takes single actions."""
    kind: Any = type(agent)
    return _fits(kind, ActionLevelAgent)


def is_env_aware(agent: object) -> bool:
    """Whether an agent wants to see its environment before its first turn."""
    kind: Any = type(agent)
    return _fits(kind, EnvAware)


def is_mortal(env: object) -> bool:
    """Whether an environment can tell of its death before anything is run in it."""
    kind: Any = type(env)
    return _fits(kind, Mortal)


@functools.cache
def _fits(kind: Any, protocol: Any) -> bool:
    return issubclass(kind, protocol)
