"""Residency: which episodes may hold a context in an engine's KV memory. Pure; needs no prediction.

When live contexts exceed KV memory, each turn finds its prefix evicted by others and computes it
anew: several times the work. So new episodes enter while there is room, and when those inside have
outgrown it, the newest are parked as their turn ends: little is invested in them, and the oldest go
on to their end. A prompt that a group shares counts once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

T = TypeVar("T", bound="Hashable")

KV_SHARE = 0.85
"""Of KV memory. The rest is for what running generations will add, and for the contexts of ended
episodes, which an LRU cache keeps longer than those that wait for a command: at 0.95 a quarter of a
step's work was computed twice, at 0.75 slots were idle."""

_TURNS_AHEAD = 2
"""An episode enters if everybody inside can still grow by so many turns; else it would park one."""


class Footprint(NamedTuple):
    """What one episode holds, in tokens."""

    group: str
    """Who shares the prompt."""
    prompt: int = 0
    """Of its first generation; 0 while it is not known."""
    own: int = 0
    """Behind the prompt."""


@dataclass(slots=True)
class _Group:
    prompt: int
    members: int = 0


class Residency(Generic[T]):
    """The episodes inside one engine."""

    def __init__(self, kv_tokens: int, *, share: float = KV_SHARE) -> None:
        """Let contexts take `share` of `kv_tokens`."""
        if kv_tokens < 1 or not 0 < share <= 1:
            raise ValueError(f"{share} of {kv_tokens} tokens: must be above 0, and at most 1")
        self._room = kv_tokens * share
        self._inside: dict[T, Footprint] = {}
        self._groups: dict[str, _Group] = {}
        self._typical_prompt = 0
        self._grown = self._turns = 0
        self.used = 0
        """Tokens of those inside."""

    def __contains__(self, episode: object) -> bool:
        return episode in self._inside

    def __iter__(self) -> Iterator[T]:
        return iter(self._inside)

    def __len__(self) -> int:
        return len(self._inside)

    def fits(self, footprint: Footprint) -> bool:
        """Whether an episode may enter. The first always may, however large it is."""
        group = self._groups.get(footprint.group)
        prompt = (footprint.prompt or self._typical_prompt) if group is None else 0
        ahead = _TURNS_AHEAD * self._turn_tokens() * (len(self._inside) + 1)
        return not self._inside or self.used + prompt + footprint.own + ahead <= self._room

    def enter(self, episode: T, footprint: Footprint) -> None:
        """Let an episode in, which is the newest now."""
        group = self._groups.get(footprint.group)
        if group is None:
            group = self._groups[footprint.group] = _Group(self._typical_prompt)
            self.used += group.prompt
        group.members += 1
        self._inside[episode] = footprint
        self.used += footprint.own
        self._know_prompt(group, footprint.prompt)

    def grow(self, episode: T, footprint: Footprint) -> None:
        """Take note of what an episode inside holds after a turn."""
        grown = footprint.own - self._inside[episode].own
        self._inside[episode] = footprint
        self.used += grown
        self._grown += grown
        self._turns += 1
        self._know_prompt(self._groups[footprint.group], footprint.prompt)

    def exceeds(self, episode: T) -> bool:
        """Whether an episode inside is among the newest, which are too much together."""
        over = self.used - self._room
        for newest in reversed(self._inside):
            if over <= 0 or len(self._inside) == 1:
                return False
            if newest == episode:
                return True
            over -= self._inside[newest].own
        raise KeyError(episode)

    def leave(self, episode: T) -> None:
        """Let an episode go; harmless when it is not inside."""
        footprint = self._inside.pop(episode, None)
        if footprint is None:
            return
        group = self._groups[footprint.group]
        group.members -= 1
        self.used -= footprint.own
        if not group.members:
            self.used -= group.prompt
            del self._groups[footprint.group]

    def check(self) -> None:
        """Assert the invariants."""
        own = sum(footprint.own for footprint in self._inside.values())
        assert self.used == own + sum(group.prompt for group in self._groups.values())
        assert sum(group.members for group in self._groups.values()) == len(self._inside)
        assert all(group.members > 0 for group in self._groups.values())

    def _know_prompt(self, group: _Group, tokens: int) -> None:
        if tokens:
            self._typical_prompt = tokens
            self.used += tokens - group.prompt
            group.prompt = tokens

    def _turn_tokens(self) -> float:
        return self._grown / self._turns if self._turns else 0.0
