"""Request ids that SGLang cannot confuse: one for each generation of each attempt of an episode.

SGLang aborts every request whose rid *starts with* the one named, so all rids are equally long:
then none is a prefix of another. A nonce of this process's life keeps a resumed run from reusing
one.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.types import EpisodeId

_MAX_ATTEMPT = 0xFFFF
_MAX_GENERATION = 0xFFFFFF

_PARTS = (12, 16, 4, 6)
"""Hexadecimal digits of nonce, episode, attempt and generation."""


class RidFactory:
    """Makes rids `nonce-episode-attempt-generation`, hexadecimal, 42 characters."""

    def __init__(self, nonce: str | None = None) -> None:
        """`nonce` is 12 hex digits; None draws one from the system's entropy."""
        self._nonce = nonce if nonce is not None else secrets.token_hex(6)
        if len(self._nonce) != _PARTS[0]:
            raise ValueError(f"nonce {self._nonce!r} must be 12 hex digits")

    def make(self, episode: EpisodeId, *, attempt: int, generation: int) -> str:
        """Return the rid of one request; the same arguments give the same rid."""
        if not (0 <= attempt <= _MAX_ATTEMPT and 0 <= generation <= _MAX_GENERATION):
            raise ValueError(
                f"attempt {attempt} or generation {generation} of {episode} does not fit a rid"
            )
        return f"{self._nonce}-{episode.key}-{attempt:04x}-{generation:06x}"


def episode_key(rid: str) -> str | None:
    """Return the episode's part of a rid; None for a rid that `RidFactory` did not make."""
    parts = rid.split("-")
    return parts[1] if tuple(map(len, parts)) == _PARTS else None
