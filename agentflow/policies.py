"""Finds a priority policy by its section of the configuration: `name`, and its own keys."""

from __future__ import annotations

import dataclasses
import inspect
from typing import TYPE_CHECKING, Any, Final

from agentflow.errors import ConfigError
from agentflow.registry import did_you_mean, import_any, plugin_boundary
from priority.policies import Policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BUILTIN_POLICY: Final = {
    "fcfs": "priority.policies:Fcfs",
    "fcfs_preempt": "priority.policies:FcfsPreempt",
    "longest_predicted_first": "priority.policies:LongestPredictedFirst",
    "shortest_predicted_first": "priority.policies:ShortestPredictedFirst",
    "group_completion": "priority.policies:GroupCompletion",
}
"""Policy name → `module:Class`."""


def build_policy(
    config: Mapping[str, Any],
    *,
    preemption: bool = False,
    python_path: str | Sequence[str] | None = None,
) -> Policy:
    """Make the policy that `config` names, with its own keys.

    Raises ConfigError naming the key, the value and what would be right.
    """
    name = config.get("name")
    if not isinstance(name, str):
        known = ", ".join(sorted(BUILTIN_POLICY))
        raise ConfigError(f"needs a `name` (built in: {known}; or your own)")
    cls = import_any(name, builtin=BUILTIN_POLICY, path=python_path, kind="policy")
    keys: dict[str, Any] = {key: value for key, value in config.items() if key != "name"}
    with plugin_boundary(f"policy {name!r}"):
        _check_keys(cls, keys)
        accepted = inspect.signature(cls).parameters
        if "preempts" in accepted:
            keys["preempts"] = preemption
        elif preemption:
            raise ConfigError("knows no high class that could preempt; leave preemption out")
        policy = cls(**keys)
        if not isinstance(policy, Policy):
            raise ConfigError(f"{policy!r} is no policy: it needs `preempts` and `classify`")
        return policy


def _check_keys(cls: Any, keys: Mapping[str, Any]) -> None:
    parameters = dict(inspect.signature(cls).parameters)
    parameters.pop("preempts", None)
    known = ", ".join(sorted(parameters)) or "none"
    for key in keys:
        if key not in parameters:
            hint = did_you_mean(key, list(parameters))
            raise ConfigError(f"unknown key {key!r}{hint} (known: {known})")
    if not dataclasses.is_dataclass(cls):
        return
    for key, parameter in parameters.items():
        if key not in keys and parameter.default is inspect.Parameter.empty:
            raise ConfigError(f"{key} is missing")
        kind, said = int | float, "number"
        if parameter.annotation == "int":
            kind, said = int, "whole number"
        value = keys.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, kind):
            raise ConfigError(f"{key}: {value!r} must be a {said}")
