"""Rehearsal: weight updates that change nothing, now and then, to see that a run survives them."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentflow.types import SyncMode

if TYPE_CHECKING:
    from agentflow.protocols import EngineAdmin, Runner
    from executors.weight_sync import WeightSync

logger = logging.getLogger(__name__)


async def rehearse(
    sync: WeightSync, engine: EngineAdmin, *, every_s: float, runner: Runner
) -> None:
    """Update weights for ever, every `every_s` seconds in the mean, in modes drawn by chance."""
    chance = runner.random("weight sync rehearsal")
    modes = sorted(SyncMode)
    while True:
        await asyncio.sleep(chance.expovariate(1 / every_s))
        mode = chance.choice(modes)

        async def update(mode: SyncMode = mode) -> None:
            if mode is not SyncMode.IN_PLACE:  # its KV is to be kept
                await engine.flush()

        report = await sync.run(mode, update)
        logger.info("rehearsed a weight update: %s", report)
