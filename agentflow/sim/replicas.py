"""ReplicaRouter: several engines behind one `Model`, an episode staying where its KV is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key
from agentflow.errors import EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.protocols import TokenSink
    from agentflow.sim.engine import SimulatedEngine
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo


class ReplicaRouter:
    """Sends an episode's first request to the replica with the fewest episodes, the rest there.

    When that replica is dead, the episode moves to a living one and prefills anew.
    """

    def __init__(self, engines: Sequence[SimulatedEngine]) -> None:
        if not engines:
            raise ValueError("there must be at least one replica")
        self.engines = engines
        self._home: dict[str, int] = {}
        self._episodes = [0] * len(engines)

    async def info(self) -> ModelInfo:
        """Describe a living replica; they are alike. KV memory is that of all."""
        alive = [replica for replica in self.engines if replica.alive]
        one = await (alive or self.engines)[0].info()
        if one.kv_tokens is None:
            return one
        return replace(one, kv_tokens=one.kv_tokens * len(self.engines))

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Continue `request.input_ids` at its episode's home."""
        return await self._at(request.rid).generate(request, sink)

    async def abort(self, rid: str) -> None:
        """Ask that `rid` ends, wherever it is."""
        for replica in self.engines:
            await replica.abort(rid)

    async def close(self) -> None:
        """Close all replicas."""
        for replica in self.engines:
            await replica.close()

    def _at(self, rid: str) -> SimulatedEngine:
        episode = episode_key(rid) or rid
        home = self._home.get(episode)
        if home is None or not self.engines[home].alive:
            home = self._emptiest()
            self._home[episode] = home
            self._episodes[home] += 1
        return self.engines[home]

    def _emptiest(self) -> int:
        alive = [n for n, replica in enumerate(self.engines) if replica.alive]
        if not alive:
            raise EngineUnreachable(f"all {len(self.engines)} replicas are dead")
        return min(alive, key=lambda n: (self._episodes[n], n))
