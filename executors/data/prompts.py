"""Prompts: what a trainer hands in, as the samples of one group each, and as plain data again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.types import EpisodeId, RolloutSample, SamplingParams
from executors.data.coordinator import replicas

if TYPE_CHECKING:
    from collections.abc import Sequence

Prompt = RolloutSample | dict[str, Any]
"""A task row (SWE-bench's fields), or a sample that carries more: sampling, messages, metadata."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """One prompt that was issued: a group."""

    prompt: RolloutSample
    n: int

    @property
    def uid(self) -> str:
        """The group's name."""
        return self.prompt.episode.uid

    def samples(self) -> list[RolloutSample]:
        """Make the group's samples."""
        return replicas(self.prompt, n=self.n)

    def to_plain(self) -> dict[str, Any]:
        """Give it as numbers, texts, lists and mappings, for a checkpoint."""
        prompt = self.prompt
        return {
            "uid": self.uid,
            "n": self.n,
            "task": dict(prompt.task),
            "validate": prompt.validate,
            "sampling": asdict(prompt.sampling) if prompt.sampling is not None else None,
            "raw_prompt": prompt.raw_prompt,
            "raw_prompt_ids": prompt.raw_prompt_ids.tolist(),
            "metadata": dict(prompt.metadata),
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Issued:
        """Read what `to_plain` gave."""
        sampling = plain["sampling"]
        prompt = RolloutSample(
            episode=EpisodeId(uid=plain["uid"]),
            task=plain["task"],
            validate=plain["validate"],
            sampling=SamplingParams(**sampling) if sampling is not None else None,
            raw_prompt=list(plain["raw_prompt"]),
            raw_prompt_ids=np.array(plain["raw_prompt_ids"], np.int32),
            metadata=dict(plain["metadata"]),
        )
        return cls(prompt=prompt, n=plain["n"])


def whole(name: str, value: Any, *, least: int) -> int:
    """Check a number that the trainer gave. Raises ValueError that names it."""
    if not isinstance(value, int | np.integer) or value < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    return int(value)


def as_samples(prompts: Sequence[Prompt]) -> list[RolloutSample]:
    """Read what a trainer hands in. Raises ValueError for what is no list of prompts."""
    if isinstance(prompts, str | Mapping) or not isinstance(prompts, Iterable):
        raise ValueError(  # noqa: TRY004  # a wrong value as any other
            f"prompts is a {type(prompts).__name__}; it must be a list of task rows or"
            " RolloutSamples"
        )
    return [p if isinstance(p, RolloutSample) else _sample(p) for p in prompts]


class Issuer:
    """Names groups: the same task issued again, in a later epoch, is another group."""

    def __init__(self) -> None:
        self.times = Counter[str]()
        """How often each name was issued; part of a backend's state."""

    def know(self, uids: Iterable[str]) -> None:
        """Hear of groups that were named in an earlier process."""
        for uid in uids:
            name, at, times = uid.rpartition("@")
            if at and times.isdecimal():
                self.times[name] = max(self.times[name], int(times) + 1)
            else:
                self.times[uid] = max(self.times[uid], 1)

    def issue(self, sample: RolloutSample, *, n: int, validate: bool = False) -> Issued:
        """Name a prompt."""
        name = sample.episode.uid
        times = self.times[name]
        self.times[name] += 1
        uid = f"{name}@{times}" if times else name
        named = replace(sample, episode=EpisodeId(uid=uid), validate=validate or sample.validate)
        return Issued(prompt=named, n=n)


def _sample(row: Mapping[str, Any]) -> RolloutSample:
    if not isinstance(row, Mapping):
        raise ValueError(f"prompt: {row!r} is no task row, which is a mapping, nor a RolloutSample")  # noqa: TRY004  # a wrong value as any other
    if not row.get("instance_id"):
        keys = ", ".join(sorted(map(str, row))) or "nothing"
        raise ValueError(f"prompt: a task row needs an instance_id; this one has {keys}")
    return RolloutSample(episode=EpisodeId(uid=str(row["instance_id"])), task=row)
