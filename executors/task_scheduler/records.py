"""Samples as plain data: dictionaries, lists, texts, numbers and arrays, and back.

What is in a record can be written by any store and read without running anybody's code.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.errors import ConfigError
from agentflow.types import (
    Cause,
    Ending,
    EpisodeFacts,
    EpisodeId,
    RolloutSample,
    SamplingParams,
    SWERolloutResult,
    TerminationClass,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_ARRAYS = {
    "raw_prompt_ids": np.int32,
    "prompts": np.int32,
    "responses": np.int32,
    "response_mask": np.int8,
    "rollout_log_prob": np.float32,
    "weight_versions": np.int32,
}
_PLAIN = ("validate", "attempt", "remove_sample", "restarted_tokens")
_STRUCTURES = ("task", "raw_prompt", "metadata")


@contextmanager
def reading(path: Path, *, advice: str) -> Iterator[None]:
    """Name the file whose content is not what was once written. Raises ConfigError."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{error}; {advice}") from error
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ConfigError(f"{path}: is damaged ({error!r}); {advice}") from error


def to_record(sample: RolloutSample) -> dict[str, Any]:
    """Give a sample as plain data; an interrupted episode's live state is not part of it.

    Raises ConfigError naming what in task or metadata cannot be plain data.
    """
    facts = {f.name: getattr(sample.facts, f.name) for f in fields(EpisodeFacts)}
    return {
        "uid": sample.episode.uid,
        "replica_index": sample.episode.replica_index,
        "reward": {"score": float(sample.rewards)},
        "sampling": None if sample.sampling is None else plain(asdict(sample.sampling), "sampling"),
        "ending": None if sample.ending is None else plain(_ending(sample.ending), "ending"),
        "result": None if sample.result is None else str(sample.result),
        "termination": None if sample.termination is None else str(sample.termination),
        "facts": plain(facts, "facts"),
        **{name: getattr(sample, name) for name in _PLAIN},
        **{name: plain(getattr(sample, name), name) for name in _STRUCTURES},
        **{name: np.asarray(getattr(sample, name), kind) for name, kind in _ARRAYS.items()},
    }


def _ending(ending: Ending) -> dict[str, Any]:
    return {"cause": str(ending.cause), "phase": ending.phase, "message": ending.message}


def to_sample(record: Mapping[str, Any]) -> RolloutSample:
    """Make the sample of a record again."""
    sampling, ending = record["sampling"], record["ending"]
    facts = dict(record["facts"])
    facts["messages"] = tuple(facts["messages"])
    return RolloutSample(
        episode=EpisodeId(uid=record["uid"], replica_index=record["replica_index"]),
        rewards=record["reward"]["score"],
        sampling=None if sampling is None else _sampling(sampling),
        ending=None if ending is None else Ending(**{**ending, "cause": Cause(ending["cause"])}),
        result=None if record["result"] is None else SWERolloutResult(record["result"]),
        termination=_optional_class(record["termination"]),
        facts=EpisodeFacts(**facts),
        **{name: record[name] for name in (*_PLAIN, *_STRUCTURES, *_ARRAYS)},
    )


def _sampling(values: Mapping[str, Any]) -> SamplingParams:
    lists = {name: tuple(values[name]) for name in ("stop", "stop_token_ids")}
    return SamplingParams(**{**values, **lists})


def _optional_class(value: str | None) -> TerminationClass | None:
    return None if value is None else TerminationClass(value)


def plain(value: Any, where: str) -> Any:
    """Rebuild `value` out of dict, list, str, int, float, bool and None.

    Raises ConfigError naming the place of whatever is something else.
    """
    if value is None or type(value) in {str, int, float, bool}:
        return value
    if isinstance(value, str):  # an enumeration's member
        return str(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict) or hasattr(value, "keys"):
        return {_key(key, where): plain(value[key], f"{where}.{key}") for key in value.keys()}  # noqa: SIM118  # any Mapping
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise ConfigError(
        f"sample.{where} is a {type(value).__name__}; only texts, numbers, lists and mappings of"
        " them can be kept in a file"
    )


def _key(key: Any, where: str) -> str | int:
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise ConfigError(f"sample.{where} has the key {key!r}; keys must be texts or numbers")
    return str(key) if isinstance(key, str) else key
