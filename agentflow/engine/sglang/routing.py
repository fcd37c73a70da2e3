"""Routing: which replica gets a generation, so that an episode finds its own KV cache again."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.sglang.replica import Replica

REMEMBERED = 65_536
"""Episodes whose replica is remembered; far above what one process keeps alive."""


class Routing:
    """An episode's first generation goes where least is in flight; later ones follow it."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self._home: OrderedDict[str, Replica] = OrderedDict()

    def pick(self, rid: str) -> Replica:
        """Return the replica for `rid`."""
        key = episode_key(rid)
        home = self._home.get(key) if key else None
        if home is None:
            home = min(self._replicas, key=lambda replica: replica.in_flight)
        if key:
            self._remember(key, home)
        return home

    def forget(self, rid: str) -> None:
        """Let the episode of `rid` go elsewhere next time: its replica did not answer."""
        key = episode_key(rid)
        if key:
            self._home.pop(key, None)

    def _remember(self, key: str, home: Replica) -> None:
        self._home[key] = home
        self._home.move_to_end(key)
        if len(self._home) > REMEMBERED:
            self._home.popitem(last=False)
