"""Room: how many samples a worker has under way at once, beside those that wait for a judge."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


class Room:
    """Slots, taken by one dispatch loop."""

    def __init__(self, slots: int, *, judged: int = 0) -> None:
        """So many samples that only wait to be judged need no slot."""
        self._slots = slots
        self._most_judged = judged
        self._judged: set[EpisodeId] = set()
        self._taken = 0
        self._freed = asyncio.Event()

    async def acquire(self) -> None:
        """Take a slot when there is one."""
        while self._taken >= self._slots + min(len(self._judged), self._most_judged):
            self._freed.clear()
            await self._freed.wait()
        self._taken += 1

    def is_judged(self, episode: EpisodeId) -> None:
        """Hear that a sample that has a slot waits for its judge alone."""
        self._judged.add(episode)
        self._freed.set()

    def release(self, episode: EpisodeId) -> None:
        """Give a sample's slot back."""
        self._judged.discard(episode)
        self._taken -= 1
        self._freed.set()
