"""How an ended sample is written down: a line of samples.jsonl, an event, and what they name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from agentflow.engine.recorded_tokens import tokens_name

if TYPE_CHECKING:
    from agentflow.types import EpisodeId, RolloutSample

_SLUG_LENGTH = 80
"""Characters of a uid in a file name; with the key it stays far below the usual 255 bytes."""


def trajectory_name(episode: EpisodeId) -> str:
    """Path of the trajectory inside the run directory; readable, and unique by its key."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", episode.uid).strip(".-")[:_SLUG_LENGTH]
    return f"trajectories/{slug}.{episode.replica_index}.{episode.key}.traj.json"


def sample_row(sample: RolloutSample, *, trajectory: str | None = None) -> dict[str, Any]:
    """Give an ended sample as samples.jsonl has it; `trajectory` is its file, where it has one."""
    facts, ending = sample.facts, sample.ending
    assert ending is not None
    return {
        "uid": sample.episode.uid,
        "replica_index": sample.episode.replica_index,
        "key": sample.episode.key,
        "instance_id": sample.task.get("instance_id"),
        "attempt": sample.attempt,
        "validate": sample.validate,
        "reward": sample.rewards,
        "remove_sample": sample.remove_sample,
        "termination": sample.termination,
        "cause": ending.cause,
        "phase": ending.phase,
        "message": ending.message,
        "result": sample.result,
        "turns": facts.turns,
        "prompt_tokens": len(sample.prompts),
        "response_tokens": len(sample.responses),
        "generated_tokens": facts.generated_tokens,
        "forked_tokens": facts.forked_tokens,
        "restarted_tokens": sample.restarted_tokens,
        "forks": facts.forks,
        "generation_s": facts.generation_s,
        "environment_s": facts.environment_s,
        "reward_s": facts.reward_s,
        "submission": facts.submission,
        "image": facts.image,
        "patch": facts.patch,
        "verdict": facts.verdict,
        "tokens": tokens_name(sample.episode.key),
        "trajectory": trajectory,
    }


def ended_facts(sample: RolloutSample) -> dict[str, Any]:
    """Give what the event `ended` says of a sample."""
    facts, ending = sample.facts, sample.ending
    versions = sample.weight_versions[sample.response_mask == 1]
    return {
        "cause": ending.cause if ending is not None else None,
        "status": sample.termination,
        "masked": sample.remove_sample,
        "reward": sample.rewards,
        "turns": facts.turns,
        "generated": facts.generated_tokens,
        "restarted": sample.restarted_tokens - sample.stale_tokens,
        "stale": sample.stale_tokens,
        "forked": facts.forked_tokens,
        "oldest_version": int(versions.min()) if len(versions) else None,
        "newest_version": int(versions.max()) if len(versions) else None,
    }
