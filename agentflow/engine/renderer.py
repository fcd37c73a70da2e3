"""ChatRenderer: the seam between conversations and ids; `template_renderer` is what fills it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Message


class ChatRenderer(Protocol):
    """What a TurnModel needs of a renderer."""

    @property
    def end_of_turn_ids(self) -> tuple[int, ...]:
        """Ids by which the assistant ends its turn."""
        ...

    def opening(self, messages: Sequence[Message]) -> Sequence[int]:
        """Ids of a whole conversation with the prompt for the assistant's answer."""
        ...

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> Sequence[int]:
        """Ids that `messages` add behind an assistant's turn; `ended`: it sampled its end."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids."""
        ...
