"""How an action-level flow is told to schedule, and whom it tells what happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from priority.policies import Fcfs

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Any

    from agentflow.scheduling import Limits
    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId
    from priority.policies import Policy


class SchedulingHooks(Protocol):
    """What a coordinator wants to hear, and may answer, while episodes run."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Hear that an episode has its environment and waits for its first generation."""
        ...

    def predict(
        self, sample: SWESample, *, gen_turn_seq: int
    ) -> Coroutine[Any, Any, float | None] | None:
        """Predict, beside the episode's command, the tokens that it will still generate.

        None when that cannot be known: at once, without work of its own, or as the answer.
        """
        ...


class NoHooks:
    """Nobody listens and nothing is predicted."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Do nothing."""

    def predict(self, sample: SWESample, *, gen_turn_seq: int) -> None:
        """Know nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How a flow schedules."""

    limits: Limits
    policy: Policy = field(default_factory=Fcfs)
    hooks: SchedulingHooks = field(default_factory=NoHooks)
    partial_rollout: bool = True
    """An episode that a weight sync interrupts goes on with its tokens; False: it starts anew."""
    kv_share: float | None = None
    """Share of the engine's KV memory that the contexts of live episodes may take; None: all that
    there are."""
