"""Crew: the workers of a virtual run, some of which are lost on the way and replaced.

A worker is lost when its run is cancelled, when what its flow schedules with is, or when the
coordinator gives it up while it runs on, as it does with one that is silent; such a one is ended a
while later, as it may wait for environments that it holds itself. What it had goes to the others;
its replacement has a new name.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from typing import TYPE_CHECKING

from agentflow.errors import WorkerCancelled
from executors.data.coordinator import WorkerGivenUp

if TYPE_CHECKING:
    import random

    from agentflow.sim.setup import Simulation
    from agentflow.types import EpisodeId
    from executors.data.coordinator import DataCoordinator
    from executors.virtual.drivers import Driver, DriverFactory

SPARED = "crew"
"""Name of the tasks that watch the workers; they are no part of what is tried."""
RUN = "worker run"
CLOSE = "worker close"
_LINGERS_S = 60.0
"""Virtual seconds that a worker which was given up runs on at most."""


class Crew:
    """`size` workers over one coordinator."""

    def __init__(
        self, make_driver: DriverFactory, simulation: Simulation, source: DataCoordinator
    ) -> None:
        self._make_driver = make_driver
        self._simulation = simulation
        self._source = source
        self._numbers = itertools.count(1)
        self.drivers: list[Driver] = []
        """Those that work now."""
        self._runs: dict[str, asyncio.Task[None]] = {}
        self.reissued: set[EpisodeId] = set()
        """Episodes that a lost worker had; what it received for them is not in their samples."""
        self.counts: Counter[str] = Counter()

    async def work(self, size: int) -> None:
        """Work until all samples have ended. Raises what a worker raises that was not lost."""
        async with asyncio.TaskGroup() as posts:
            for _ in range(size):
                posts.create_task(self._fill_post(), name=SPARED)

    async def give_up_some(self, rng: random.Random, *, every_s: float | None) -> None:
        """Give a worker up now and then, until cancelled; None: never."""
        while every_s is not None:
            await asyncio.sleep(rng.expovariate(1 / every_s))
            if self.drivers:
                self.counts["worker given up"] += 1
                driver = rng.choice(self.drivers)
                self._release(driver)
                run = self._runs[driver.name]
                asyncio.get_running_loop().call_later(rng.uniform(0, _LINGERS_S), run.cancel)

    async def _fill_post(self) -> None:
        while await self._is_lost(self._make_driver(self._simulation, self._source, self._name())):
            self.counts["worker lost"] += 1

    def _name(self) -> str:
        return f"worker-{next(self._numbers)}"

    async def _is_lost(self, driver: Driver) -> bool:
        self.drivers.append(driver)
        run = self._runs[driver.name] = asyncio.create_task(driver.run(), name=RUN)
        try:
            await asyncio.wait([run])
        finally:  # cancelled with the whole run, or it has ended
            run.cancel()
            await asyncio.wait([run])
            self.drivers.remove(driver)
            close = asyncio.create_task(driver.close(), name=CLOSE)
            await asyncio.wait([close])
            self._release(driver)
            lost = run.cancelled() or _was_lost(run.exception())
            if not close.cancelled():
                close.result()
        return lost

    def _release(self, driver: Driver) -> None:
        self.reissued.update(self._source.release_worker(driver.name))


def _was_lost(failure: BaseException | None) -> bool:
    """Whether a run failed as a lost worker's does. Raises any other failure."""
    if failure is None:
        return False
    rest: BaseException | None = failure
    if isinstance(failure, BaseExceptionGroup):
        _, rest = failure.split((WorkerGivenUp, WorkerCancelled))
    elif isinstance(failure, WorkerGivenUp | WorkerCancelled):
        rest = None
    if rest is not None:
        raise rest
    return True
