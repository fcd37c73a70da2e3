"""MeteredModel: counts, at the engine's door, the tokens of every episode.

The token ledger's `received` comes from here, so that what the samples say is checked against an
independent count; and from the engine's own count what was generated and reached nobody.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key
from agentflow.errors import EngineAdminFailed
from agentflow.protocols import CountsTokens, Replicated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.protocols import Model, TokenSink
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo


logger = logging.getLogger(__name__)


class MeteredModel:
    """A `Model` that passes everything on and keeps count."""

    def __init__(self, model: Model, received: Counter[str] | None = None) -> None:
        """Count in `received`, or in one of its own."""
        self._model = model
        self.received: Counter[str] = Counter() if received is None else received
        """Generated tokens by `EpisodeId.key`."""
        self._before: int | None = None
        """Tokens that the engine counted and that were not received, up to `watch_engine`."""

    async def info(self) -> ModelInfo:
        """Describe the engine behind it."""
        return await self._model.info()

    def replicas(self) -> list[MeteredModel]:
        """Give each replica of the engine by itself, counted here as well; itself if it is one."""
        if not isinstance(self._model, Replicated):
            return [self]
        return [MeteredModel(model, self.received) for model in self._model.replicas()]

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Generate, and count what reaches `sink`."""
        key = episode_key(request.rid) or request.rid
        return await self._model.generate(request, _CountingSink(sink, self.received, key))

    async def abort(self, rid: str) -> None:
        """Abort at the engine behind it."""
        await self._model.abort(rid)

    async def close(self) -> None:
        """Close the engine behind it."""
        await self._model.close()

    async def watch_engine(self) -> None:
        """Compare with the engine's own count from now on."""
        self._before = await self._not_received()

    async def unseen(self) -> int | None:
        """Return what the engine generated since then and nobody here received.

        Others who use it are counted as well. None: it keeps no count.
        """
        after = await self._not_received()
        return None if self._before is None or after is None else after - self._before

    async def _not_received(self) -> int | None:
        if not isinstance(self._model, CountsTokens):
            return None
        try:
            return await self._model.generated_tokens() - self.received.total()
        except EngineAdminFailed as failure:
            logger.info("what the engine itself counts is not known: %s", failure)
            return None


class _CountingSink:
    __slots__ = ("_counter", "_key", "_sink")

    def __init__(self, sink: TokenSink, counter: Counter[str], key: str) -> None:
        self._sink = sink
        self._counter = counter
        self._key = key

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        self._sink.append(ids, logprobs, version)
        self._counter[self._key] += len(ids)
