"""Survivorship filters of a rollout: rejection sampling first, finish-only on the survivors.

Each is independent of the other and can be off. A group that nothing survives of is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.types import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentflow.types import RolloutSample

    Groups = Sequence[Sequence[RolloutSample]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """What the filters left, and what each took."""

    groups: list[list[RolloutSample]]
    rejected: int = 0
    """Samples below the reward, or masked: nobody judged those."""
    unfinished: int = 0
    """Survivors of the first filter that did not finish by themselves."""


def finished(sample: RolloutSample) -> bool:
    """Whether the agent ended the episode itself, by submitting."""
    return sample.ending is not None and sample.ending.cause is Cause.SUBMITTED


def apply_filters(groups: Groups, *, min_reward: float | None, finish_only: bool) -> Filtered:
    """Reject by reward (None: nobody), then by finish, and say how many went."""
    kept: list[list[RolloutSample]] = [list(group) for group in groups]
    rejected = unfinished = 0
    if min_reward is not None:
        floor = min_reward
        kept, rejected = _keep(kept, lambda s: not s.remove_sample and s.rewards >= floor)
    if finish_only:
        kept, unfinished = _keep(kept, finished)
    return Filtered(groups=kept, rejected=rejected, unfinished=unfinished)


def _keep(
    groups: list[list[RolloutSample]], wanted: Callable[[RolloutSample], bool]
) -> tuple[list[list[RolloutSample]], int]:
    before = sum(map(len, groups))
    survivors = [[sample for sample in group if wanted(sample)] for group in groups]
    kept = [group for group in survivors if group]
    return kept, before - sum(map(len, kept))
