"""SimulatedWeights: pause, update, flush and resume, under the names of the SGLang client."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentflow.errors import EngineAdminFailed
from agentflow.sim.engine_messages import Continue, Flush, Pause, PauseMode, Update

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.sim.engine import SimulatedEngine


class SimulatedWeights:
    """Pause, update, flush and resume, under the names of the SGLang client."""

    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine = engine
        self.mode: PauseMode | None = None
        """How the engine is paused; None while it runs."""

    async def pause(self, mode: PauseMode | str) -> None:
        """Stop generating. Raises EngineAdminFailed."""
        if self.mode is not None:
            raise EngineAdminFailed(f"pause({mode}): paused already, in mode {self.mode}")
        self.mode = how = PauseMode(mode)
        try:
            await self._engine.call(lambda ticket: Pause(ticket=ticket, mode=how))
        except BaseException:
            if self._engine.alive:
                await self.resume()
            self.mode = None
            raise

    async def resume(self) -> None:
        """Go on generating. Harmless when not paused."""
        await self._engine.call(lambda ticket: Continue(ticket=ticket))
        self.mode = None

    @asynccontextmanager
    async def paused(self, mode: PauseMode | str) -> AsyncIterator[None]:
        """Pause for the duration of a block, and resume however it ends."""
        await self.pause(mode)
        try:
            yield
        finally:
            await self.resume()

    async def from_disk(self, path: str, *, version: int) -> None:
        """Load weights that are `version` from then on; waits for running requests unless paused.

        Cached prefixes are flushed, unless paused in place. Raises EngineAdminFailed.
        """
        if not path:
            raise EngineAdminFailed("path is empty; it must name a checkpoint")
        flush = self.mode is not PauseMode.IN_PLACE
        await self._engine.call(lambda ticket: Update(ticket=ticket, version=version, flush=flush))

    async def flush(self) -> None:
        """Drop cached prefixes. Raises EngineAdminFailed while requests use them."""
        await self._engine.call(lambda ticket: Flush(ticket=ticket))
