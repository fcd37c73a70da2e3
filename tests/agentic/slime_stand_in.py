"""Stands in for slime 0.3.1: its records and its data source, with the fields that they have there.

Facts from `slime/utils/types.py` (Sample), `slime/rollout/base_types.py` (the two outputs) and
`slime/rollout/data_source.py` (groups, and what `add_samples` asserts) of the tag v0.3.1. Fields
that need torch and that no rollout of ours touches are left out of nothing: only their types are.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

FIELDS_NOT_OURS = {
    "multimodal_inputs",
    "multimodal_train_inputs",
    "multimodal_train_input_id",
    "apply_chat_template_kwargs",
    "rollout_top_p_token_ids",
    "rollout_top_p_token_offsets",
    "rollout_routed_experts",
    "teacher_log_probs",
    "generate_function_path",
    "custom_rm_path",
    "train_metadata",
    "session_id",
    "spec_info",
    "prefix_cache_info",
}
"""Fields of the real record that are left out here: nothing of ours reads or writes them."""


@dataclass
class Sample:
    """One sample."""

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: str | list[dict[str, str]] = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: str | None = None
    reward: float | dict[str, Any] | None = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False

    class Status(Enum):
        """How it ended."""

        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    non_generation_time: float = 0.0

    def get_reward_value(self, args: Any) -> Any:
        """Give the reward, or the one of several that is asked for."""
        return self.reward if not args.reward_key else self.reward[args.reward_key]  # type: ignore[index]


@dataclass
class RolloutFnTrainOutput:
    """What a rollout function returns."""

    samples: list[list[Sample]]
    metrics: dict[str, Any] | None = None


@dataclass
class RolloutFnEvalOutput:
    """What it returns of an evaluation."""

    data: dict[str, dict[str, Any]]
    metrics: dict[str, Any] | None = None


class DataSource:
    """Prompts in groups, with a buffer for what comes back, as RolloutDataSourceWithBuffer."""

    def __init__(self, rows: list[dict[str, Any]], *, n: int) -> None:
        self.rows, self.n = rows, n
        self.offset = self.group_index = self.index = 0
        self.buffer: list[list[Sample]] = []

    def get_samples(self, num_samples: int) -> list[list[Sample]]:
        """Give the buffer's first, then new ones, round and round."""
        groups, self.buffer = self.buffer[:num_samples], self.buffer[num_samples:]
        while len(groups) < num_samples:
            prompt = Sample(prompt="p", metadata=self.rows[self.offset % len(self.rows)])
            self.offset += 1
            group = []
            for _ in range(self.n):
                sample = copy.deepcopy(prompt)
                sample.group_index, sample.index = self.group_index, self.index
                self.index += 1
                group.append(sample)
            self.group_index += 1
            groups.append(group)
        return groups

    def add_samples(self, samples: list[list[Sample]]) -> None:
        """Take groups back; they must be whole."""
        assert isinstance(samples, list)
        for group in samples:
            assert isinstance(group, list)
            assert len(group) == self.n
            self.buffer.append(group)
