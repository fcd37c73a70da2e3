"""A driver for every replica of a simulation's engine, as one: a worker each, as a run has them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.sim.setup import Simulation
    from agentflow.types import SyncMode
    from executors.data.coordinator import DataCoordinator
    from executors.virtual.drivers import Driver, DriverFactory


def one_each(workers: Sequence[DriverFactory], *, alike: bool = True) -> DriverFactory:
    """Drive every replica by its own of `workers`.

    With `alike` new samples are shared out as in a run; else each takes all that it has slots for.
    """

    def make(simulation: Simulation, source: DataCoordinator, name: str) -> Driver:
        drivers = [
            worker(simulation.on_replica(index), source, f"{name} {index}")
            for index, worker in enumerate(workers)
        ]
        if alike:
            for driver in drivers:
                source.share_among(driver.name, driver.slots)
        return _Drivers(name, drivers)

    return make


class _Drivers:
    """Several drivers as one."""

    def __init__(self, name: str, drivers: Sequence[Driver]) -> None:
        self.name = name
        self.slots = sum(driver.slots for driver in drivers)
        self._drivers = drivers

    async def run(self) -> None:
        """Roll out every sample of the source."""
        async with asyncio.TaskGroup() as tasks:
            for driver in self._drivers:
                tasks.create_task(driver.run())

    async def close(self) -> None:
        """Close all."""
        for driver in self._drivers:
            await driver.close()

    def pause_dispatch(self) -> None:
        """Start no new sample."""
        for driver in self._drivers:
            driver.pause_dispatch()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        for driver in self._drivers:
            driver.resume_dispatch()

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start."""
        for driver in self._drivers:
            await driver.pause_generations(mode)

    async def resume_generations(self) -> None:
        """Generate again."""
        for driver in self._drivers:
            await driver.resume_generations()
