"""Generations on a real server, whose right tokens are known beforehand.

The checkpoints' next token is the last one's successor by a margin of 3 nats, as
`sglang_cpu.checkpoint` says, for each set of weights.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import numpy as np
from support import Sink

from agentflow.engine.rids import RidFactory
from agentflow.engine.sglang_cpu import Layout
from agentflow.errors import GenerationAborted
from agentflow.types import EpisodeId, FinishReason, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.sglang import SglangEngine

LAYOUT = Layout.default()
BUDGET = 24
PROMPTS = 12
SEED = 20260


async def load(engine: SglangEngine, name: str, version: int) -> None:
    """Load a checkpoint."""
    await engine.update_weights_from_disk(str(LAYOUT.checkpoint(name)), version=version)


def prompt_of(number: int) -> list[int]:
    """Return one of PROMPTS prompts, none the beginning of another."""
    chance = random.Random(f"{SEED}/{number % PROMPTS}")
    return [chance.randrange(3, 348) for _ in range(8 + number % PROMPTS)]


def chain(prompt: Sequence[int], count: int, following: Sequence[int]) -> list[int]:
    """Return what the weights say after `prompt`."""
    ids = [prompt[-1]]
    for _ in range(count):
        ids.append(following[ids[-1]])
    return ids[1:]


class Runs:
    """Makes requests with new rids, and runs them to the end of a budget, aborts or not."""

    def __init__(self, engine: SglangEngine) -> None:
        self.engine = engine
        self.rids = RidFactory()
        self.aborts = 0

    def request(
        self, number: int, sink: Sink, attempt: int, budget: int = BUDGET
    ) -> GenerationRequest:
        """Go on from what the sink has."""
        return GenerationRequest(
            rid=self.rids.make(EpisodeId(uid=str(number)), attempt=0, generation=attempt),
            input_ids=np.asarray([*prompt_of(number), *sink.ids], np.int32),
            sampling=SamplingParams(temperature=0.0, max_new_tokens=budget - len(sink.ids)),
        )

    async def to_the_end(self, number: int, aborts: Sequence[int], budget: int = BUDGET) -> Sink:
        """Generate `budget` tokens, aborting when so many have come in all; 0 aborts at once."""
        sink, attempt = Sink(), 0
        while len(sink.ids) < budget:
            request = self.request(number, sink, attempt, budget)
            limit = aborts[attempt] if attempt < len(aborts) else None
            attempt += 1
            try:
                async with asyncio.TaskGroup() as group:
                    if limit is not None:
                        group.create_task(self._abort_at(request.rid, sink, limit))
                    group.create_task(self._generate(request, sink))
            except* GenerationAborted:
                self.aborts += 1
        return sink

    async def _generate(self, request: GenerationRequest, sink: Sink) -> None:
        result = await self.engine.generate(request, sink)
        assert result.finish is FinishReason.LENGTH
        sink.append([], [], 0)

    async def _abort_at(self, rid: str, sink: Sink, tokens: int) -> None:
        await sink.reached(min(tokens, BUDGET))
        await self.engine.abort(rid)
