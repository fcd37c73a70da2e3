"""Routing: which replica gets a generation, so that an episode finds its own KV cache again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from agentflow.engine.sglang.replica import Replica

REMEMBERED = 65_536
"""Episodes whose replica is remembered; far above what one process keeps alive."""

REST_S = 5.0
"""A replica that broke down is asked last for so long: nothing runs there, so that it would
otherwise look the least busy and be given everything."""


class Routing:
    """An episode's first generation goes where least is in flight; later ones follow it.

    One that has a home goes there instead, unless that has just broken down.
    """

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._home: OrderedDict[str, Replica] = OrderedDict()
        self._rests_until: dict[Replica, float] = {}

    def pick(
        self, rid: str, *, home: Replica | None = None, tried: Collection[Replica] = ()
    ) -> Replica:
        """Return the replica for `rid`, one that was not `tried` where there is one."""
        if home is not None and self._can_have(home, tried):
            return home
        key = episode_key(rid)
        last = self._home.get(key) if key else None
        if last is None or not self._can_have(last, tried):
            last = min(self._replicas, key=lambda r: (r in tried, self._rests(r), r.in_flight))
        if key:
            self._remember(key, last)
        return last

    def has_others(self, tried: Collection[Replica]) -> bool:
        """Whether there are replicas besides those that were tried."""
        return len(tried) < len(self._replicas)

    def forget(self, rid: str) -> None:
        """Let the episode of `rid` go elsewhere next time: its replica did not answer."""
        key = episode_key(rid)
        if key:
            self._home.pop(key, None)

    def let_rest(self, replica: Replica) -> None:
        """Ask the others first for a while."""
        self._rests_until[replica] = asyncio.get_running_loop().time() + REST_S

    def _can_have(self, replica: Replica, tried: Collection[Replica]) -> bool:
        return replica not in tried and not self._rests(replica)

    def _rests(self, replica: Replica) -> bool:
        until = self._rests_until.get(replica)
        return until is not None and asyncio.get_running_loop().time() < until

    def _remember(self, key: str, home: Replica) -> None:
        self._home[key] = home
        self._home.move_to_end(key)
        if len(self._home) > REMEMBERED:
            self._home.popitem(last=False)
