"""FakeModel: a few lines of language model, the same token for the same context and weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 6
_MIX = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeModel:
    """Greedy, whatever the temperature, so that every run can be compared with another one."""

    vocab_size: int = 512
    eos_id: int = 2
    context_length: int = 4096

    def next_token(self, tail: Sequence[int], length: int, version: str) -> tuple[int, float]:
        """Return the id after a context of `length` tokens that ends in `tail`, and its log-prob.

        The last `WINDOW` tokens count, and the weights' `version`.
        """
        state = length * _MIX + sum(version.encode())
        for token in tail[-WINDOW:]:
            state = ((state ^ token) * _MIX) & _MASK
            state ^= state >> 29
        return state % self.vocab_size, -1.0 - (state >> 40) % 4096 / 4096

    def text(self, ids: Sequence[int]) -> str:
        """Return one letter a token, nothing for the end of text."""
        return "".join(chr(97 + i % 26) for i in ids if i != self.eos_id)
