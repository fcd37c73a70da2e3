"""SlotBooks: how long generation slots were busy, and why the others stood idle.

Pure: fed with what the episodes of a replica do and when that changes. Every idle slot of every
moment has one reason: each is laid to an episode that could have used it, and to `no_episode` where
there is none.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agentflow.observe.doing import Doing

if TYPE_CHECKING:
    from collections.abc import Mapping


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


_LAID_TO: Final = {
    Doing.WAITS_GENERATION: Idle.DISPATCH,
    Doing.COMMAND: Idle.COMMAND,
    Doing.WAITS_COMMAND: Idle.COMMAND,
    Doing.STARTING: Idle.START,
    Doing.WAITS_START: Idle.START,
}
"""What idle slots are laid to while an episode does this; others could not use one."""

_NEAREST_FIRST: Final = (Idle.DISPATCH, Idle.COMMAND, Idle.START)


@dataclass(slots=True)
class Slots:
    """The slots of one replica."""

    total: int
    settled: float
    """Until when the seconds are counted."""
    busy: int = 0
    """Slots in use."""
    could_use: dict[Idle, int] = field(default_factory=lambda: dict.fromkeys(_NEAREST_FIRST, 0))
    """Episodes that could use one, by what keeps them from it."""
    busy_s: float = 0.0
    idle_s: dict[Idle, float] = field(default_factory=lambda: dict.fromkeys(Idle, 0.0))

    def settle(self, now: float, *, paused: bool) -> None:
        """Count the time up to `now`, in which nothing changed."""
        elapsed = now - self.settled
        if elapsed <= 0:  # somebody looked after this event came and before it was read
            return
        self.settled = now
        self.busy_s += self.busy * elapsed
        left = self.total - self.busy
        if left <= 0:
            return
        if paused:
            self.idle_s[Idle.WEIGHT_SYNC] += left * elapsed
            return
        for reason in _NEAREST_FIRST:
            laid = min(left, self.could_use[reason])
            if laid:
                self.idle_s[reason] += laid * elapsed
                left -= laid
        self.idle_s[Idle.NO_EPISODE] += left * elapsed

    def count(self, doing: Doing, by: int) -> None:
        """So many more of its episodes do this."""
        if doing is Doing.GENERATING:
            self.busy += by
        elif (reason := _LAID_TO.get(doing)) is not None:
            self.could_use[reason] += by

    def clear(self) -> None:
        """No episode is here any more."""
        self.busy = 0
        self.could_use = dict.fromkeys(_NEAREST_FIRST, 0)


class SlotBooks:
    """The slots of all replicas."""

    def __init__(self) -> None:
        self.replicas: dict[str, Slots] = {}
        self._slots: Mapping[str, int] = {}
        self._otherwise = 0
        self._paused = False

    def begin(self, slots: Mapping[str, int], *, otherwise: int, now: float) -> None:
        """A process begins: replicas have `slots`, all free, or `otherwise` where not named."""
        self._slots, self._otherwise, self._paused = slots, otherwise, False
        for name, replica in self.replicas.items():
            replica.total, replica.settled = self._slots_of(name), now
            replica.clear()

    def move(self, replica: str, before: Doing | None, after: Doing | None, now: float) -> None:
        """An episode of `replica` does something else from now on; None is nothing there."""
        slots = self.replicas.get(replica)
        if slots is None:
            slots = self.replicas[replica] = Slots(self._slots_of(replica), settled=now)
        slots.settle(now, paused=self._paused)
        if before is not None:
            slots.count(before, -1)
        if after is not None:
            slots.count(after, 1)

    def _slots_of(self, replica: str) -> int:
        return self._slots.get(replica, self._otherwise)

    def pause(self, *, paused: bool, now: float) -> None:
        """Generations are paused from now on, or go on."""
        self.settle(now)
        self._paused = paused

    def settle(self, now: float) -> None:
        """Count the time of all replicas up to `now`."""
        for slots in self.replicas.values():
            slots.settle(now, paused=self._paused)
