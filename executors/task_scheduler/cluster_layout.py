"""Reads `--env-cluster-layout`: inline JSON or a file, nodes in either form.

    {"10.0.0.1": {"gpus": [0, 1], "cpu": 96, "memory_gb": 384},  "10.0.0.2": [0, 1, 2, 3]}

Missing `cpu` and `memory_gb` come from `--env-num-cpus` and `--env-memory-gb`. Every complaint
names the node and the key.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentflow.errors import ConfigError
from agentflow.registry import did_you_mean
from executors.task_scheduler.placement import PlacementPool
from executors.task_scheduler.resource import NodeResource, units

if TYPE_CHECKING:
    from collections.abc import Mapping

_KEYS: Final = ("gpus", "cpu", "memory_gb")


def _build_placement_pool(
    layout: str | None, *, num_cpus: float, memory_gb: float
) -> PlacementPool | None:
    """Make the global pool; None, so that batches launch ungated, without a layout.

    `num_cpus` and `memory_gb` are those of a node that does not tell its own. Raises ConfigError.
    """
    if layout is None or not layout.strip():
        return None
    return pool_of(_parsed(layout), num_cpus=num_cpus, memory_gb=memory_gb)


def pool_of(nodes: Mapping[str, Any], *, num_cpus: float, memory_gb: float) -> PlacementPool:
    """Make the pool of a parsed layout. Raises ConfigError."""
    fallback = {"cpu": num_cpus, "memory_gb": memory_gb}
    return PlacementPool(_node(name, value, fallback) for name, value in nodes.items())


def _parsed(layout: str) -> dict[str, Any]:
    where, text = "--env-cluster-layout", layout
    if not layout.lstrip().startswith(("{", "[")):
        where = f"--env-cluster-layout {layout}"
        try:
            text = Path(layout).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"{where}: is neither inline JSON nor a file that can be read: {error}"
            ) from error
    try:
        nodes = json.loads(text, object_pairs_hook=_without_repeats)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from error
    if not isinstance(nodes, dict):
        raise ConfigError(
            f"{where}: is a {type(nodes).__name__}; it must map each node to its resources"
        )
    return nodes


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"cluster layout: {key!r} stands there twice")
        found[key] = value
    return found


def _node(name: str, value: Any, fallback: Mapping[str, float]) -> NodeResource:
    if not name.strip():
        raise ConfigError(f"cluster layout: a node is named {name!r}; give it its IP or a name")
    if isinstance(value, list):
        value = {"gpus": value}
    if not isinstance(value, dict):
        raise ConfigError(
            f"cluster layout: node {name!r} is {value!r}; it must be a list of GPU ids or a mapping"
            f" of {', '.join(_KEYS)}"
        )
    for key in value:
        if key not in _KEYS:
            raise ConfigError(
                f"cluster layout: node {name!r}: unknown key {key!r}{did_you_mean(key, _KEYS)}"
                f" (known: {', '.join(_KEYS)})"
            )
    numbers = {}
    for key, default in fallback.items():
        numbers[key] = value.get(key, default)
        units(numbers[key], name=f"cluster layout: node {name!r}: {key}")
    return NodeResource(node=name, gpus=_gpus(name, value.get("gpus", [])), **numbers)


def _gpus(node: str, value: Any) -> tuple[int, ...]:
    good = isinstance(value, list) and all(type(gpu) is int and gpu >= 0 for gpu in value)
    if not good or len(set(value)) != len(value):
        raise ConfigError(
            f"cluster layout: node {node!r}: gpus is {value!r}; it must be a list of different GPU"
            " ids, whole numbers from 0"
        )
    return tuple(value)
