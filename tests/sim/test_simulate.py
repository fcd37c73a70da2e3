"""The production executor and flow in virtual time, judged by the lower bound."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentflow.config import RolloutConfig
from agentflow.errors import ConfigError
from agentflow.sim.clock import VirtualRunner, run_virtual
from agentflow.sim.environment import EnvLimits
from agentflow.sim.setup import Simulation, SimulationConfig, engine_spec
from agentflow.sim.workload import load_workload
from agentflow.types import Cause
from executors.virtual.drivers import Schedule, action_level, action_level_of, driver_of, naive
from executors.virtual.simulate import SimulationReport, simulate

if TYPE_CHECKING:
    from agentflow.sim.trace import EpisodeTrace


def tiny(groups: int = 5, seed: int = 1) -> list[EpisodeTrace]:
    """Draw small episodes in groups of four."""
    runner = VirtualRunner(seed=seed)
    workload = load_workload("tiny")
    return workload.episodes(groups=groups, group_size=4, random_for=runner.random)


def config(
    *,
    slots: int = 8,
    kv_tokens: int | None = None,
    replicas: int = 1,
    containers: int | None = None,
    starts: int | None = 4,
    growth: float = 0.01,
) -> SimulationConfig:
    """Return a small machine."""
    engine = engine_spec("qwen3-8b-h200-tp1", slots=slots, kv_tokens=kv_tokens, context=600)
    limits = EnvLimits(containers=containers, starts=starts, start_growth=growth)
    return SimulationConfig(
        engine=engine, replicas=replicas, limits=limits, seed=1, keep_events=True
    )


MACHINES = {
    "plain": config(),
    "one slot": config(slots=1),
    "little KV": config(kv_tokens=700),
    "few containers": config(containers=3),
    "replicas": config(slots=2, replicas=3),
}


@pytest.mark.parametrize("machine", MACHINES)
def test_no_run_beats_the_bound_and_every_episode_is_whole(machine: str) -> None:
    """Each sample has exactly its trace's tokens and reward; rho is at least 1."""
    traces = tiny()
    report = simulate(traces, MACHINES[machine], naive(12))
    assert report.rho >= 1
    by_episode = {sample.episode: sample for sample in report.samples}
    assert len(by_episode) == len(report.samples) == len(traces)
    for trace in traces:
        sample = by_episode[trace.episode]
        assert sample.ending is not None
        assert sample.ending.cause is Cause.SUBMITTED
        assert len(sample.prompts) + len(sample.responses) == trace.tokens
        assert int(sample.response_mask.sum()) == sum(turn.output for turn in trace.turns)
        assert sample.rewards == float(trace.resolved)


@pytest.mark.parametrize("machine", ["plain", "one slot", "little KV", "few containers"])
def test_the_waterfall_of_one_engine_is_exact(machine: str) -> None:
    """Its parts add up to the makespan, and none that counts waste is negative."""
    report = simulate(tiny(), MACHINES[machine], naive(12))
    fall = report.waterfall
    assert fall is not None
    assert fall.makespan_s == pytest.approx(report.makespan_s, abs=1e-9)
    assert min(fall.idle_s, fall.step_overhead_s, fall.prefill_batches_s) >= 0
    assert fall.recompute_s >= -1e-9


def test_little_kv_costs_recomputation_and_plenty_costs_none() -> None:
    """The waterfall shows thrash where it happens."""
    little = simulate(tiny(), MACHINES["little KV"], naive(12))
    plenty = simulate(tiny(), MACHINES["plain"], naive(12))
    assert little.waterfall is not None
    assert plenty.waterfall is not None
    assert little.uses[0].evicted_tokens > 0
    assert little.waterfall.recompute_s > 100 * abs(plenty.waterfall.recompute_s)


def test_two_runs_of_one_seed_are_equal_and_two_seeds_are_not() -> None:
    """Byte for byte."""
    first, again = (simulate(tiny(), config(), naive(9)) for _ in range(2))
    other = simulate(tiny(seed=2), config(), naive(9))
    assert first.events == again.events
    assert first.events_digest != other.events_digest
    assert digest(first) == digest(again)


def digest(report: SimulationReport) -> bytes:
    """All tokens, in the order the samples ended."""
    return b"".join(sample.responses.tobytes() for sample in report.samples)


_IMPORTS = os.pathsep.join(map(str, (Path(__file__).parent, Path(__file__).parents[2])))
"""Where the other process finds this module and the packages."""


@pytest.mark.slow
def test_a_process_of_another_hash_seed_logs_the_same_bytes() -> None:
    """Nothing depends on the order of a set or on an address."""
    program = "import sys\nfrom test_simulate import logs\nsys.stdout.buffer.write(logs())\n"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": "12345", "PYTHONPATH": _IMPORTS},
        capture_output=True,
        check=True,
    )
    assert other.stdout == logs()
    assert json.loads(other.stdout.splitlines()[0])["t"] == 0.0


def logs() -> bytes:
    """Event logs of two machines."""
    reports = [simulate(tiny(), MACHINES[name], naive(12)) for name in ("little KV", "replicas")]
    return b"".join(line for report in reports for line in report.events)


def test_single_actions_keep_contexts_within_kv_memory_as_in_a_run() -> None:
    """The same limits as a run has that sets none; without that one, tokens are computed twice."""
    machine = config(kv_tokens=500)
    kept = simulate(
        tiny(),
        machine,
        driver_of(Schedule.ACTION_FCFS, slots=8, live=12, containers=None, submitted=20),
    )
    rollout = RolloutConfig(
        max_concurrency=12,
        gen_concurrency=8,
        start_concurrency=12,
        reward_concurrency=12,
        kv_share=None,
    )
    loose = simulate(tiny(), machine, action_level(action_level_of(rollout, submitted=20)))
    assert kept.uses[0].prefill_tokens < loose.uses[0].prefill_tokens


@pytest.mark.parametrize(("one", "all_"), [(700, 2100), (None, None)])
def test_several_engines_have_the_kv_memory_of_all(one: int | None, all_: int | None) -> None:
    """A flow that spans them keeps its contexts within that; a worker of one sees its own."""

    async def kv_tokens() -> list[int | None]:
        simulation = Simulation(tiny(), config(kv_tokens=one, replicas=3))
        models = (simulation.model, simulation.on_replica(1).model)
        return [(await model.info()).kv_tokens for model in models]

    assert run_virtual(kv_tokens()) == [all_, one]


def test_an_engine_too_small_for_an_episode_is_an_error() -> None:
    """It names the field, its value and what would do."""
    with pytest.raises(ConfigError, match=r"kv_tokens = 100 must be at least \d+"):
        Simulation(tiny(), config(kv_tokens=100))


def test_generated_tokens_are_those_of_the_engine() -> None:
    """The engine's count is the sum of all masks: nothing is lost between them."""
    report = simulate(tiny(), MACHINES["replicas"], naive(12))
    masked = sum(int(np.sum(sample.response_mask)) for sample in report.samples)
    assert sum(use.generated_tokens for use in report.uses) == masked


@pytest.mark.parametrize("schedule", [Schedule.NAIVE, Schedule.ACTION_FCFS])
@pytest.mark.parametrize("containers", [None, 4])
def test_replicas_are_driven_by_a_worker_each(schedule: Schedule, containers: int | None) -> None:
    """All of them work, every episode ends, and no token is lost between them."""
    machine = config(slots=2, replicas=3, containers=containers)
    driver = driver_of(schedule, slots=6, live=8, containers=containers, submitted=20, replicas=3)
    report = simulate(tiny(), machine, driver)
    assert len(report.samples) == 20
    assert report.rho >= 1
    spent = [use.generated_tokens for use in report.uses]
    assert sum(spent) == sum(int(np.sum(sample.response_mask)) for sample in report.samples)
    assert min(spent) > 0
