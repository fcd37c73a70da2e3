"""Conversation: what an engine that plays a policy can see of an episode in a request's ids.

Finds the turns by the ids that stand in front of every answer. Message contents cannot forge those:
they hold a special token, which contents are encoded without.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from agentflow.engine.rids import episode_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from agentflow.engine.tokenizer import FastTokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """An episode as a policy sees it."""

    episode: str
    """The episode's key out of the rid; empty when the rid is of another make."""
    turn: int
    """How many answers came before this one."""
    prompt: str
    """Text of everything before the first answer."""
    latest: str
    """Text since the last answer began: that answer and what followed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTurn:
    """A conversation, and the beginning of its answer that the request already holds."""

    conversation: Conversation
    partial: tuple[int, ...]
    """Ids of the answer so far, when an aborted turn goes on."""


def read_turn(
    ids: NDArray[np.int32], *, rid: str, prompt_ids: Sequence[int], tokenizer: FastTokenizer
) -> OpenTurn | None:
    """Read a request; None when no turn of the assistant is open in it."""
    starts = _ends_of(ids, prompt_ids)
    if not starts:
        return None
    latest = starts[-2] if len(starts) > 1 else 0
    return OpenTurn(
        conversation=Conversation(
            episode=episode_key(rid) or "",
            turn=len(starts) - 1,
            prompt=tokenizer.decode(ids[: starts[0]].tolist()),
            latest=tokenizer.decode(ids[latest : starts[-1]].tolist()),
        ),
        partial=tuple(ids[starts[-1] :].tolist()),
    )


def _ends_of(ids: NDArray[np.int32], needle: Sequence[int]) -> list[int]:
    """Positions behind each occurrence of `needle`."""
    if len(ids) < len(needle):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(ids, len(needle))
    found = np.flatnonzero((windows == np.asarray(needle, np.int32)).all(axis=1))
    return [int(i) + len(needle) for i in found]
