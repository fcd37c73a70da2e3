"""Samples as plain data, to a file and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.types import EpisodeFacts, SamplingParams, SWERolloutResult
from executors.task_scheduler.records import to_record, to_sample
from executors.task_scheduler.stores import JsonStore

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample


def full_sample() -> RolloutSample:
    """Make a sample with something in every field."""
    sample = parts.sample("u", 3, note=[1, {"x": None}], share=np.float32(0.5))
    sample.sampling = SamplingParams(stop=("a",), stop_token_ids=(1, 2))
    sample.result = SWERolloutResult.SUBMIT
    sample.raw_prompt = [{"role": "user", "content": "fix"}]
    sample.prompts = np.arange(3, dtype=np.int32)
    sample.rollout_log_prob = np.array([-0.1], np.float32)
    sample.facts = EpisodeFacts(turns=2, messages=({"role": "user", "content": "x"},), patch="p")
    return sample


def test_a_record_gives_the_sample_back(tmp_path: Path) -> None:
    """Through a file, in every field."""
    sample = full_sample()
    store = JsonStore()
    store.save(tmp_path / "x" / "one.json", to_record(sample))
    back = to_sample(store.load(tmp_path / "x" / "one.json"))
    for name in ("episode", "task", "sampling", "result", "raw_prompt", "facts", "rewards"):
        assert getattr(back, name) == getattr(sample, name)
    assert back.metadata == {"note": [1, {"x": None}], "share": 0.5}
    assert back.prompts.dtype == np.int32
    assert back.prompts.tolist() == [0, 1, 2]
    assert back.rollout_log_prob.tobytes() == sample.rollout_log_prob.tobytes()


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"a": {"b": [object()]}}, r"sample\.metadata\.a\.b\[0\] is a object"),
        ({"a": {(1, 2): 0}}, r"sample\.metadata\.a has the key \(1, 2\)"),
    ],
)
def test_what_is_no_plain_data_is_named(metadata: dict[str, Any], complaint: str) -> None:
    """A trainer's own objects cannot be read back without running its code."""
    with pytest.raises(ConfigError, match=complaint):
        to_record(parts.sample("u", **metadata))
