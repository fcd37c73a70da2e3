"""One run of `benchmarks.rollout`: a scenario under a policy, in virtual time, and its columns."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from typing import TYPE_CHECKING

from agentflow.sim.clock import run_virtual
from agentflow.sim.setup import Simulation
from agentflow.types import SyncMode
from benchmarks.rollout_meter import SlotMeter, use_over_time
from benchmarks.rollout_policies import driver_of
from executors.data.coordinator import DataCoordinator
from executors.weight_sync import WeightSync

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.sim.bound import Waterfall
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import RolloutSample
    from benchmarks.rollout_meter import Held
    from benchmarks.rollout_scenarios import Scenario
    from executors.virtual.drivers import Driver

POINTS = 200
"""Of a curve of slot use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run shows."""

    columns: Mapping[str, float]
    """By name; times in seconds, shares from 0 to 1."""
    waterfall: Waterfall | None
    """None with several replicas."""
    curve: Sequence[float]
    """Slots in use in each of `POINTS` equal parts of the makespan."""


def play(scenario: Scenario, policy: str, seed: int) -> tuple[Outcome, Sequence[Held]]:
    """Run it; returns every stay in a slot as well. Bugs are raised as they come."""
    run = _Run(scenario, scenario.traces(seed), seed)
    return run_virtual(run.play(policy))


class _Run:
    """One run on its way."""

    def __init__(self, scenario: Scenario, traces: list[EpisodeTrace], seed: int) -> None:
        self._scenario = scenario
        self._traces = traces
        self._seed = seed
        self._meter = SlotMeter()
        self._ended: list[tuple[float, RolloutSample]] = []
        self._left = Counter(trace.episode.uid for trace in traces)
        self._complete: list[float] = []
        """When each group was complete."""
        self._completed = asyncio.Semaphore(0)

    async def play(self, policy: str) -> tuple[Outcome, Sequence[Held]]:
        """Drive all episodes to their end."""
        simulation = Simulation(self._traces, self._scenario.config(self._seed), watch=self._meter)
        self._sim = simulation
        self._source = DataCoordinator(runner=simulation.runner, on_ended=self._on_ended)
        self._groups = [
            list(group) for _, group in groupby(simulation.samples(), lambda s: s.episode.uid)
        ]
        self._issue(self._scenario.stream or len(self._groups))
        driver = driver_of(policy, self._scenario)(simulation, self._source, "worker")
        try:
            async with asyncio.TaskGroup() as tasks:
                updates = tasks.create_task(self._update_weights(driver))
                await driver.run()
                updates.cancel()
        finally:
            await driver.close()
            await simulation.model.close()
        return self._outcome(), self._meter.stays

    # --- the trainer --------------------------------------------------------------------------

    def _issue(self, groups: int) -> None:
        for _ in range(groups):
            if self._groups:
                self._source.add(self._groups.pop(0))
        if not self._groups:
            self._source.finish()

    def _on_ended(self, sample: RolloutSample) -> None:
        now = self._sim.runner.now()
        self._ended.append((now, sample))
        uid = sample.episode.uid
        self._left[uid] -= 1
        if not self._left[uid]:
            self._complete.append(now)
            self._completed.release()
            if self._scenario.stream is not None:
                asyncio.get_running_loop().call_soon(self._issue, 1)

    async def _update_weights(self, driver: Driver) -> None:
        scenario, simulation = self._scenario, self._sim
        sync = WeightSync(
            [driver], simulation.engines, runner=simulation.runner, events=simulation.events
        )
        version = 0

        async def update() -> None:
            for engine in simulation.engines:
                await engine.update_weights_from_disk("weights", version=version)

        if scenario.sync_at_s is not None:
            await asyncio.sleep(scenario.sync_at_s)
            version = 1
            await sync.run(SyncMode.ABORT, update)
        while scenario.sync_every is not None:
            for _ in range(scenario.sync_every):
                await self._completed.acquire()
            version += 1
            await sync.run(SyncMode.IN_PLACE, update)

    # --- columns ------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        simulation, meter, scenario = self._sim, self._meter, self._scenario
        makespan, bound = self._ended[-1][0], simulation.bound
        slots = scenario.slots * scenario.replicas
        times = [at for at, _ in self._ended]
        columns = {
            "makespan": makespan,
            "rho": bound.rho(makespan),
            "utilisation": meter.slot_s / (slots * makespan),
            "useful": bound.work_s / makespan,
            "env_utilisation": simulation.envs.busy_s / (scenario.containers * makespan),
            "mean_completion": fmean(times),
            "p99_completion": times[int(0.99 * (len(times) - 1))],
            "group_completion": fmean(self._complete),
            "preemptions": meter.preemptions + sum(e.use.preemptions for e in simulation.engines),
            "recomputed_tokens": self._recomputed(),
            "longest_wait": meter.longest_wait_s,
        }
        return Outcome(
            columns=columns,
            waterfall=simulation.waterfall(makespan),
            curve=use_over_time(meter.stays, until_s=makespan, points=POINTS),
        )

    def _recomputed(self) -> int:
        """Prompt tokens computed beyond those that every schedule must compute."""
        needed, paid = 0, set[str | None]()
        for work in (trace.work() for trace in self._traces):
            first = work.first_turn_cached() if work.group in paid else work.turns[0]
            paid.add(work.group)
            needed += first.new + sum(turn.new for turn in work.turns[1:])
        return sum(engine.use.prefill_tokens for engine in self._sim.engines) - needed
