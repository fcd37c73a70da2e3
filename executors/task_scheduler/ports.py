"""What a scheduler needs of its surroundings: prompts, and somebody to show progress to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.types import RolloutSample


class GroupSource(Protocol):
    """Where the prompts of a rollout come from."""

    def get_samples(self, count: int) -> list[list[RolloutSample]]:
        """Give up to `count` groups, each the samples of one prompt; none when there are none."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Give cursor and chance, as primitives."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        ...


class Progress(Protocol):
    """Shows how a step goes; `tqdm` fits."""

    def update(self, n: int, /) -> object:
        """Take that `n` more tasks are done."""
        ...
