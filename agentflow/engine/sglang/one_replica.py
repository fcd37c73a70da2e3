"""OneReplica: one server of an engine as a `Model`, for the worker that fills it.

Owns nothing: connections, pauses and weights are the engine's, which also sends a generation to
another replica where this one has broken down.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.engine.sglang.engine import SglangEngine
    from agentflow.engine.sglang.replica import Replica
    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo


class OneReplica:
    """A `Model` on one of an engine's servers."""

    def __init__(self, engine: SglangEngine, replica: Replica) -> None:
        self._engine = engine
        self._replica = replica

    async def info(self) -> ModelInfo:
        """Describe the model, with the KV memory of this server. Raises as the engine does."""
        info = await self._engine.info()
        own = self._replica.info
        assert own is not None, "the engine has connected"
        return replace(info, kv_tokens=own.kv_tokens)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Continue `request.input_ids`. Raises as the engine does."""
        return await self._engine.generate(request, sink, home=self._replica)

    async def abort(self, rid: str) -> None:
        """Ask that exactly `rid` ends."""
        await self._engine.abort(rid)

    async def close(self) -> None:
        """Leave the connections to the engine."""
