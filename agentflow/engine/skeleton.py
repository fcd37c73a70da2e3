"""Skeleton: what a chat template writes around messages, with a slot for each message's content.

Made by rendering marked contents once; filled as often as needed without rendering. It keeps the
template's own text (in which special tokens are meant) apart from contents (in which they are not),
and knows whether the template trims a content.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentflow.engine.tokenizer import Piece
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Message

_LEFT: Final = " \t"
_RIGHT: Final = "\t "
_SLOT: Final = re.compile(rf"({_LEFT})?agentflow-slot-(\d+)-x({_RIGHT})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """Where a message's content stands."""

    index: int
    keeps_left: bool
    """False where the template strips whitespace before the content."""
    keeps_right: bool

    def fill(self, content: str) -> str:
        """Give the content as the template writes it."""
        content = content if self.keeps_left else content.lstrip()
        return content if self.keeps_right else content.rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skeleton:
    """Template text and slots, in turn: `texts[0] slots[0] texts[1] …`."""

    texts: tuple[str, ...]
    slots: tuple[Slot, ...]

    def pieces(self, contents: Sequence[str]) -> list[Piece]:
        """Fill the slots; `contents[i]` belongs to the i-th message."""
        pieces = [Piece(self.texts[0], trusted=True)]
        for slot, text in zip(self.slots, self.texts[1:], strict=True):
            pieces.append(Piece(slot.fill(contents[slot.index]), trusted=False))
            pieces.append(Piece(text, trusted=True))
        return pieces

    def fill(self, contents: Sequence[str]) -> str:
        """Give the filled skeleton as text."""
        return "".join(piece.text for piece in self.pieces(contents))


def marked(roles: Sequence[str]) -> list[Message]:
    """Messages whose contents `parse` finds again."""
    return [
        {"role": role, "content": f"{_LEFT}agentflow-slot-{i}-x{_RIGHT}"}
        for i, role in enumerate(roles)
    ]


def parse(text: str, roles: Sequence[str]) -> Skeleton:
    """Take a rendering of `marked(roles)` apart.

    Raises ConfigError when the template left a message out or wrote one twice.
    """
    found = list(_SLOT.finditer(text))
    indices = [int(match.group(2)) for match in found]
    for index, role in enumerate(roles):
        if indices.count(index) != 1:
            raise ConfigError(
                f"the chat template writes message {index} (role {role!r} of {list(roles)}) "
                f"{indices.count(index)} times instead of once"
            )
    starts = [match.end() for match in found]
    ends = [match.start() for match in found]
    texts = [text[a:b] for a, b in zip([0, *starts], [*ends, len(text)], strict=True)]
    slots = [
        Slot(
            index=int(match.group(2)),
            keeps_left=match.group(1) is not None,
            keeps_right=match.group(3) is not None,
        )
        for match in found
    ]
    return Skeleton(texts=tuple(texts), slots=tuple(slots))
