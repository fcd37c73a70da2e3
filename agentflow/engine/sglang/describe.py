"""What a server says about itself, as ModelInfo; and whether it is a router in front of others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.engine.sglang.versions import parse_version
from agentflow.errors import ConfigError, EngineAdminFailed, EngineUnreachable
from agentflow.types import ModelInfo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.sglang.admin import AdminClient


async def describe(
    server: AdminClient, *, vocab_size: int | None, timeout_s: float
) -> tuple[ModelInfo, str]:
    """Return the server's ModelInfo and its weight version in its own words.

    Raises EngineUnreachable, or ConfigError when its vocabulary cannot be learnt.
    """
    try:
        model = await server.get("/model_info", timeout_s=timeout_s)
        serving = await server.get("/server_info", timeout_s=timeout_s)
        models = await server.get("/v1/models", timeout_s=timeout_s)
    except EngineAdminFailed as error:
        raise EngineUnreachable(str(error)) from error
    try:
        info = ModelInfo(
            name=str(model["served_model_name"]),
            vocab_size=vocab_size or _vocab_size(model["model_path"]),
            context_length=_context(serving, models),
            weight_version=parse_version(model["weight_version"]),
            kv_tokens=_whole(serving.get("max_total_num_tokens")),
            priorities=_higher_first(serving),
        )
        return info, str(model["weight_version"])
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise EngineUnreachable(
            f"{server.url} does not answer as SGLang 0.5.23 does: {type(error).__name__} {error}"
        ) from error


def _whole(value: Any) -> int | None:
    return None if value is None else int(value)


def _higher_first(serving: dict[str, Any]) -> bool:
    reversed_ = serving.get("schedule_low_priority_values_first")
    return bool(serving.get("enable_priority_scheduling")) and not reversed_


def _context(serving: dict[str, Any], models: dict[str, Any]) -> int:
    """Longest prompt + output: the server keeps a few tokens of the context for itself."""
    longest = int(models["data"][0]["max_model_len"])
    return min(longest, int(serving.get("max_req_input_len") or longest))


def _vocab_size(model_path: str) -> int:
    """Read the embedding's size beside the weights, where they are on this machine too."""
    path = Path(model_path) / "config.json"
    try:
        found = json.loads(path.read_text())
        return int(found.get("text_config", found)["vocab_size"])
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(
            f"vocab_size: not given, and {path} does not say it ({error}); set it to the number of "
            "rows of the model's embedding, since one id above it kills an SGLang server"
        ) from error


def agreed(infos: Sequence[ModelInfo]) -> ModelInfo:
    """Return the one description of all replicas. Raises ConfigError when they differ."""
    first = infos[0]
    for other in infos[1:]:
        for name in ("name", "vocab_size", "context_length", "weight_version"):
            mine, theirs = getattr(first, name), getattr(other, name)
            if mine != theirs:
                raise ConfigError(f"urls: replicas differ in {name}: {mine!r} and {theirs!r}")
    kv = [info.kv_tokens for info in infos if info.kv_tokens is not None]
    return ModelInfo(
        name=first.name,
        vocab_size=first.vocab_size,
        context_length=first.context_length,
        weight_version=first.weight_version,
        kv_tokens=sum(kv) if len(kv) == len(infos) else None,
        priorities=all(info.priorities for info in infos),
    )


async def workers_behind(server: AdminClient, *, timeout_s: float) -> list[str] | None:
    """Return the URLs of the workers when `server` is a router, None when it serves itself.

    Raises EngineUnreachable.
    """
    try:
        status, answer = await server.ask("GET", "/workers", None, timeout_s=timeout_s)
    except EngineAdminFailed as error:
        raise EngineUnreachable(str(error)) from error
    if status != 200:  # noqa: PLR2004  # a server that serves itself has no such path
        return None
    try:
        return [str(worker["url"]).rstrip("/") for worker in json.loads(answer)["workers"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"urls: {server.url} looks like a router, but /workers does not name its workers "
            f"({error}): aborts would not reach them; give the workers' own urls"
        ) from error
