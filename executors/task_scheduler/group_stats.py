"""Mean and deviation of a group's rewards, over the samples that count."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import RolloutSample


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStats:
    """Of one GRPO group."""

    counted: int
    """Samples that the policy answers for."""
    mean: float
    deviation: float
    """Of the population; 0.0 where all are equal, or none counts."""


def group_stats(group: Sequence[RolloutSample]) -> GroupStats:
    """Leave out what the infrastructure ended: it is no evidence about the policy."""
    rewards = [sample.rewards for sample in group if not sample.remove_sample]
    if not rewards:
        return GroupStats(counted=0, mean=0.0, deviation=0.0)
    mean = math.fsum(rewards) / len(rewards)
    variance = math.fsum((reward - mean) ** 2 for reward in rewards) / len(rewards)
    return GroupStats(counted=len(rewards), mean=mean, deviation=math.sqrt(variance))
