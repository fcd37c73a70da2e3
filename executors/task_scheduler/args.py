"""The flags of the scheduler's path, as one record: `SchedulerArgs`, and its command line.

Each field is a flag of the same name with dashes; its metadata says what it means, and the knob
table in the README is made from it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.types import SamplingParams
from executors.task_scheduler.cluster_layout import _build_placement_pool
from executors.task_scheduler.stopping import SamplingOverrides, StoppingCriteria

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executors.task_scheduler.placement import PlacementPool


def _flag(default: Any, meaning: str, kind: Any = None) -> Any:
    kind = kind if kind is not None else type(default)
    return field(default=default, metadata={"meaning": meaning, "kind": kind})


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerArgs:
    """Set once, at launch."""

    # --- resources
    env_cluster_layout: str | None = _flag(
        None, "Cluster layout, inline JSON or a file; absent: batches launch ungated.", str
    )
    env_num_cpus: float = _flag(96.0, "Cores of a node whose layout does not say.")
    env_memory_gb: float = _flag(384.0, "Memory of a node whose layout does not say, in GB.")
    evaluator_concurrency: int = _flag(4, "Samples that one evaluator runs at a time.")
    evaluator_batch_size: int = _flag(1, "Tasks of one batch.")
    # --- a step
    rollout_batch_size: int = _flag(32, "Prompts of one rollout.")
    n_samples_per_prompt: int = _flag(8, "Samples of each prompt: the GRPO group.")
    n_samples_per_eval_prompt: int = _flag(1, "Copies of each prompt in an evaluation.")
    # --- generation
    rollout_temperature: float = _flag(1.0, "Temperature.")
    rollout_top_p: float = _flag(1.0, "Nucleus.")
    rollout_top_k: int = _flag(-1, "-1 keeps the whole vocabulary.")
    rollout_max_response_len: int = _flag(2048, "Tokens of one turn.")
    rollout_max_turns: int | None = _flag(None, "Turns of an episode; else the spec's.", int)
    rollout_max_context_len: int | None = _flag(
        None, "Tokens of prompt and answers together; else the spec's.", int
    )
    rollout_timeout_s: float | None = _flag(None, "Seconds of an episode; else the spec's.", float)
    eval_temperature: float | None = _flag(None, "In evaluations; else `--rollout-`'s.", float)
    eval_top_p: float | None = _flag(None, "In evaluations; else `--rollout-`'s.", float)
    eval_top_k: int | None = _flag(None, "In evaluations; else `--rollout-`'s.", int)
    eval_max_response_len: int | None = _flag(None, "In evaluations; else `--rollout-`'s.", int)
    eval_max_turns: int | None = _flag(None, "In evaluations; else `--rollout-`'s.", int)
    eval_max_context_len: int | None = _flag(None, "In evaluations; else `--rollout-`'s.", int)
    eval_timeout_s: float | None = _flag(None, "In evaluations; else `--rollout-`'s.", float)
    # --- what is kept
    save: str | None = _flag(
        None, "Folder of trajectory files, details and partial checkpoints.", str
    )
    save_eval_details: bool = _flag(
        False, "Write eval_details/: a line a sample, a line a turn, a summary."
    )
    # --- filters
    rejection_min_reward: float | None = _flag(
        None, "Rejection sampling: keep samples of at least this reward; absent: all.", float
    )
    finish_only: bool = _flag(False, "Keep only samples that finished by themselves.")

    def __post_init__(self) -> None:
        """Raise ConfigError for values that leave nothing to do."""
        for name in (
            "evaluator_concurrency",
            "evaluator_batch_size",
            "rollout_batch_size",
            "n_samples_per_prompt",
            "n_samples_per_eval_prompt",
        ):
            if getattr(self, name) < 1:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} is {getattr(self, name)}; it must be at least 1")
        if self.save_eval_details and self.save is None:
            raise ConfigError("--save-eval-details needs --save: the folder to write into")

    def pool(self) -> PlacementPool | None:
        """Make the global pool; None, so that batches launch ungated, without a layout."""
        return _build_placement_pool(
            self.env_cluster_layout, num_cpus=self.env_num_cpus, memory_gb=self.env_memory_gb
        )

    def stopping(self, *, evaluating: bool) -> StoppingCriteria:
        """Give what the command line says about an episode's end."""
        rollout = StoppingCriteria(
            max_turns=self.rollout_max_turns,
            max_context_len=self.rollout_max_context_len,
            timeout_s=self.rollout_timeout_s,
        )
        if not evaluating:
            return rollout
        return StoppingCriteria(
            max_turns=self.eval_max_turns,
            max_context_len=self.eval_max_context_len,
            timeout_s=self.eval_timeout_s,
        ).over(rollout)

    def sampling(self, *, evaluating: bool) -> SamplingParams:
        """Give what the command line says about sampling."""
        rollout = SamplingParams(
            temperature=self.rollout_temperature,
            top_p=self.rollout_top_p,
            top_k=self.rollout_top_k,
            max_new_tokens=self.rollout_max_response_len,
        )
        if not evaluating:
            return rollout
        return SamplingOverrides(
            temperature=self.eval_temperature,
            top_p=self.eval_top_p,
            top_k=self.eval_top_k,
            max_new_tokens=self.eval_max_response_len,
        ).over(rollout)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add every flag to a trainer's own parser."""
    for knob in fields(SchedulerArgs):
        flag = "--" + knob.name.replace("_", "-")
        if knob.metadata["kind"] is bool:
            parser.add_argument(flag, action="store_true", help=knob.metadata["meaning"])
        else:
            parser.add_argument(
                flag,
                type=knob.metadata["kind"],
                default=knob.default,
                help=knob.metadata["meaning"].replace("%", "%%"),
            )


def parse_args(argv: Sequence[str]) -> SchedulerArgs:
    """Read the flags. Raises ConfigError."""
    parser = argparse.ArgumentParser(prog="task_scheduler", exit_on_error=False, add_help=False)
    add_arguments(parser)
    try:
        known, unknown = parser.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    if unknown:
        raise ConfigError(f"unknown flag {unknown[0]!r}")
    return from_namespace(known)


def from_namespace(namespace: object) -> SchedulerArgs:
    """Pick the fields out of a trainer's parsed arguments; what it lacks keeps its default."""
    given: dict[str, Any] = {
        knob.name: getattr(namespace, knob.name, knob.default) for knob in fields(SchedulerArgs)
    }
    return SchedulerArgs(**given)
