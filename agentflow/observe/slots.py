"""SlotBooks: how long generation slots were busy, and why the others stood idle.

Pure: fed with what the episodes of a replica do and when that changes. Every idle slot of every
moment has one reason: each is laid to an episode that could have used it, and to `no_episode` where
there is none.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agentflow.observe.doing import Doing

if TYPE_CHECKING:
    from collections.abc import Iterator


class Idle(StrEnum):
    """Why a slot stands idle."""

    WEIGHT_SYNC = "weight_sync"
    """Generations are paused."""
    DISPATCH = "dispatch"
    """An episode waits for a generation and has not got it yet."""
    COMMAND = "command"
    """An episode's command runs, or waits to."""
    START = "start"
    """An episode's environment starts, or waits to."""
    NO_EPISODE = "no_episode"
    """Nobody is there who could generate."""


_LAID_TO: Final = (
    (Idle.DISPATCH, (Doing.WAITS_GENERATION,)),
    (Idle.COMMAND, (Doing.COMMAND, Doing.WAITS_COMMAND)),
    (Idle.START, (Doing.STARTING, Doing.WAITS_START)),
)
"""In this order, so that the nearest cause is named."""


@dataclass(slots=True)
class Slots:
    """The slots of one replica."""

    total: int
    doing: Counter[Doing] = field(default_factory=Counter)
    """Its episodes by what they do."""
    busy_s: float = 0.0
    idle_s: dict[Idle, float] = field(default_factory=lambda: dict.fromkeys(Idle, 0.0))
    settled: float = 0.0
    """Until when the seconds are counted."""

    @property
    def busy(self) -> int:
        """Slots in use."""
        return self.doing[Doing.GENERATING]

    def settle(self, now: float, *, paused: bool) -> None:
        """Count the time up to `now`, in which nothing changed."""
        elapsed, self.settled = now - self.settled, now
        if elapsed <= 0:
            return
        self.busy_s += self.busy * elapsed
        for reason, idle in self._idle(paused=paused):
            self.idle_s[reason] += idle * elapsed

    def _idle(self, *, paused: bool) -> Iterator[tuple[Idle, int]]:
        left = max(self.total - self.busy, 0)
        if paused:
            yield Idle.WEIGHT_SYNC, left
            return
        for reason, kinds in _LAID_TO:
            laid = min(left, sum(self.doing[kind] for kind in kinds))
            yield reason, laid
            left -= laid
        yield Idle.NO_EPISODE, left


class SlotBooks:
    """The slots of all replicas."""

    def __init__(self) -> None:
        self.replicas: dict[str, Slots] = {}
        self._slots = 0
        self._paused = False

    def begin(self, slots: int, *, now: float) -> None:
        """A process begins: each replica has `slots`, and nothing in them."""
        self._slots, self._paused = slots, False
        for replica in self.replicas.values():
            replica.total, replica.settled = slots, now
            replica.doing.clear()

    def move(self, replica: str, before: Doing | None, after: Doing | None, now: float) -> None:
        """An episode of `replica` does something else from now on; None is nothing there."""
        slots = self.replicas.get(replica)
        if slots is None:
            slots = self.replicas[replica] = Slots(self._slots, settled=now)
        slots.settle(now, paused=self._paused)
        if before is not None:
            slots.doing[before] -= 1
        if after is not None:
            slots.doing[after] += 1

    def pause(self, *, paused: bool, now: float) -> None:
        """Generations are paused from now on, or go on."""
        self.settle(now)
        self._paused = paused

    def settle(self, now: float) -> None:
        """Count the time of all replicas up to `now`."""
        for slots in self.replicas.values():
            slots.settle(now, paused=self._paused)
