"""Disturbances: what happens to a whole run in virtual time, at seeded moments.

Weight syncs in every mode, engines that die and come back, and aborts of requests that nobody of
this run asked for. `disturb` runs until it is cancelled.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Protocol

from agentflow.errors import EngineAdminFailed
from agentflow.types import SyncMode

if TYPE_CHECKING:
    import random
    from collections.abc import Awaitable, Callable, Sequence

    from agentflow.protocols import Model
    from agentflow.sim.engine import SimulatedEngine
    from agentflow.sim.faults import FaultyModel


class SyncWeights(Protocol):
    """How weights are updated: pauses everything, calls `update`, and resumes it."""

    async def __call__(self, mode: SyncMode, update: Callable[[], Awaitable[None]]) -> object:
        """Update in `mode`. Raises EngineAdminFailed."""
        ...


class Disturbances:
    """One run's weather."""

    def __init__(
        self,
        *,
        engines: Sequence[SimulatedEngine],
        model: FaultyModel,
        engine: Model,
        sync_weights: SyncWeights,
        rng: random.Random,
        every_s: float,
    ) -> None:
        """`model` knows what is in flight, `engine` takes aborts, one event comes `every_s`."""
        self._engines = engines
        self._model = model
        self._engine = engine
        self._sync_weights = sync_weights
        self._rng = rng
        self._every_s = every_s
        self._version = 0
        self.mixed = False
        """Whether an update was cut short: some engines had the new weights, others had not."""
        self.counts: Counter[str] = Counter()

    async def disturb(self) -> None:
        """Disturb until cancelled."""
        while True:
            await asyncio.sleep(self._rng.expovariate(1 / self._every_s))
            kind = self._rng.random()
            if kind < 0.5:  # noqa: PLR2004  # half of all disturbances
                await self._abort_one()
            elif kind < 0.9:  # noqa: PLR2004  # four tenths
                async with asyncio.TaskGroup() as own:  # a task that can be cancelled alone
                    own.create_task(self._sync(), name="weight sync")
            else:
                await self._die()

    async def _abort_one(self) -> None:
        rids = list(self._model.in_flight)
        if rids:
            self.counts["abort out of nowhere"] += 1
            await self._engine.abort(self._rng.choice(rids))

    async def _die(self) -> None:
        engine = self._rng.choice(self._engines)
        self.counts["engine death"] += 1
        engine.kill()
        await asyncio.sleep(self._rng.uniform(1, 30))
        engine.revive(version=self._version)

    async def _sync(self) -> None:
        """Update all engines to the next version, in one mode."""
        mode = self._rng.choice(list(SyncMode))
        self.counts[f"weight sync, {mode}"] += 1

        async def update() -> None:
            await asyncio.sleep(self._rng.uniform(0, 5))
            self._version += 1  # not before: who comes back from death loads what was published
            done = 0
            try:
                for engine in self._engines:
                    await engine.update_weights_from_disk("weights", version=self._version)
                    done += 1
            finally:
                self.mixed |= done < len(self._engines)

        try:
            await self._sync_weights(mode, update)
        except EngineAdminFailed:
            self.counts["weight sync failed"] += 1
