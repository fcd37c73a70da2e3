"""Cancellations: a run's tasks are cancelled, one at a time, at seeded awaits.

The loop tells of every task that is about to go on. Now and then the one that is told of is
cancelled: at once, so that what it waited for is there and lost, or a little later, in the
middle of another wait. Left alone are the tasks that the harness names, and work that is shielded:
nobody but the loop holds it, and whoever waits for it can be cancelled instead.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import random
    from collections.abc import Collection

    from agentflow.sim.clock import NumberedTask, VirtualLoop

_SELDOM = 0.1
"""What the share of awaits that are hit falls to in tasks that are to be hit seldom."""
_AT_ONCE = 0.5
"""Share of the cancellations that come together with what was waited for."""
_LATER_S = 20.0
"""How much later the others come at most."""


class Cancellations:
    """Cancels tasks of `loop` from `start` to `stop`."""

    def __init__(
        self,
        loop: VirtualLoop,
        rng: random.Random,
        *,
        share: float,
        spared: Collection[str],
        seldom: Collection[str],
    ) -> None:
        """`share` of the awaits are hit; none in tasks named in `spared`, few in `seldom`."""
        self._loop = loop
        self._rng = rng
        self._share = share
        self._spared = spared
        self._seldom = seldom
        self.counts: Counter[str] = Counter()
        """Cancellations by the task's name, or its coroutine's."""

    def start(self) -> None:
        """Begin."""
        self._loop.on_resume = self._resumes

    def stop(self) -> None:
        """Cancel nobody any more."""
        self._loop.on_resume = None

    def _resumes(self, task: NumberedTask[Any]) -> None:
        name = task.get_name()
        share = self._share * (_SELDOM if name in self._seldom else 1)
        if self._rng.random() >= share or name in self._spared or task.shielded:
            return
        if self._rng.random() < _AT_ONCE:
            self._cancel(task)
        else:
            self._loop.call_later(self._rng.uniform(0, _LATER_S), self._cancel_later, task)

    def _cancel_later(self, task: NumberedTask[Any]) -> None:
        if self._loop.on_resume is not None and not task.done() and task.suspended:
            self._cancel(task)

    def _cancel(self, task: NumberedTask[Any]) -> None:
        if task.cancel():
            self.counts[f"cancelled: {_name(task)}"] += 1


def _name(task: asyncio.Task[Any]) -> str:
    """What a person calls it: the names of episodes and unnamed tasks tell nothing."""
    name = task.get_name()
    if not name.replace(" ", "").isalpha():
        name = getattr(task.get_coro(), "__name__", name)
    return name.strip("_").replace("_", " ")
