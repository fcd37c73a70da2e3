"""Whether a run's samples are what its engine said, by somebody who stood between the two."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentflow.protocols import Model, TokenSink
    from agentflow.types import GenerationRequest, GenerationResult


@dataclass
class Generation:
    """One request, and what the engine answered."""

    rid: str
    input_ids: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of every token."""


class WitnessedModel:
    """A `Model` that passes everything on and remembers generations."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.generations: list[Generation] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Generate, and take note of what was asked and answered."""
        seen = Generation(rid=request.rid, input_ids=request.input_ids.tolist())
        self.generations.append(seen)
        return await self._model.generate(request, _Noting(seen, sink))


@dataclass
class _Noting:
    seen: Generation
    sink: TokenSink

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take note, and pass it on."""
        self.seen.ids += list(ids)
        self.seen.logprobs += list(logprobs)
        self.seen.versions += [version] * len(ids)
        self.sink.append(ids, logprobs, version)


def check_run(run_dir: Path, generations: Sequence[Generation]) -> int:
    """Assert that every sample holds what the engine reported, token by token.

    Each sample's requests, in the order of their rids, are played over its tokens: a request must
    have been sent exactly the tokens so far, and the tokens behind them must be the engine's, with
    its log-probs and versions; everything else must be rendered (mask 0). Returns how many tokens
    were generated.
    """
    total = 0
    rids = [generation.rid for generation in generations]
    assert len(set(rids)) == len(rids)
    for line in (run_dir / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert not sample["forks"]
        mine = [g for g in generations if g.rid.split("-")[1] == sample["key"]]
        with np.load(run_dir / sample["tokens"]) as arrays:
            total += _check_sample(dict(arrays), mine)
    return total


def _check_sample(arrays: dict[str, Any], generations: Sequence[Generation]) -> int:
    ids = [*arrays["prompts"].tolist(), *arrays["responses"].tolist()]
    start = len(arrays["prompts"])
    mask = np.zeros(len(ids), np.int8)
    logprobs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    for seen in sorted(generations, key=lambda g: g.rid):
        at, end = len(seen.input_ids), len(seen.input_ids) + len(seen.ids)
        assert seen.input_ids == ids[:at]
        assert seen.ids == ids[at:end]
        assert not mask[at:end].any()
        mask[at:end], logprobs[at:end], versions[at:end] = 1, seen.logprobs, seen.versions
    np.testing.assert_array_equal(arrays["response_mask"], mask[start:])
    np.testing.assert_array_equal(arrays["rollout_log_prob"], logprobs[start:])
    np.testing.assert_array_equal(arrays["weight_versions"], versions[start:])
    return int(mask.sum())
