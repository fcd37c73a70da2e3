"""Faults: seeds replay, the production path holds, and the checks see what does not."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentflow.sim.faults import Fault
from agentflow.types import Cause, SyncMode
from executors.virtual.drivers import NaiveDriver, Schedule
from executors.virtual.fault_runs import run_with_faults

if TYPE_CHECKING:
    from agentflow.sim.setup import Simulation
    from agentflow.types import RolloutSample
    from executors.data.coordinator import DataCoordinator


@pytest.mark.parametrize("first", range(0, 24, 8))
def test_the_trajectory_level_path_holds_under_faults(first: int) -> None:
    """Whatever fails, every sample ends once and whole, and nothing is left behind."""
    runs = [run_with_faults(seed) for seed in range(first, first + 8)]
    assert [violation for run in runs for violation in run.violations] == []
    assert sum(sum(run.faults.values()) for run in runs) > 40


def test_the_action_level_path_holds_under_faults() -> None:
    """Few environments, preemptions, pauses of the flow, clean restarts, a budget of attempts."""
    hold(Schedule.ACTION_DRAWN, range(8))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 50))
@pytest.mark.parametrize("schedule", [Schedule.ACTION_DRAWN, Schedule.ACTION_LONGEST])
def test_two_hundred_seeds_of_the_action_level_path_hold(schedule: Schedule, first: int) -> None:
    """Under every kind of fault; fifty seeds meet each of them."""
    met = hold(schedule, range(first, first + 50))
    assert met >= set(Fault) - {Fault.LOST_REPLY, Fault.REJECTED} | {
        "abort out of nowhere",
        "engine death",
        "worker given up",
        "worker lost",
        "cancelled: rolled out",
        *(f"weight sync, {mode}" for mode in SyncMode),
    }


def hold(schedule: Schedule, seeds: range) -> set[str]:
    """Play seeds, none of which may break anything; return what they met."""
    runs = [run_with_faults(seed, schedule=schedule) for seed in seeds]
    assert [f"{run.seed}: {v}" for run in runs for v in run.violations] == []
    return {fault for run in runs for fault in run.faults}


def test_a_seed_replays_its_run() -> None:
    """The same events in the same order at the same times."""
    first, again = run_with_faults(16), run_with_faults(16)
    assert first == again
    assert first.events_digest != run_with_faults(17).events_digest


def told() -> str:
    """What some seeds of every schedule came to."""
    return "\n".join(
        str(run_with_faults(seed, schedule=schedule)) for schedule in Schedule for seed in range(8)
    )


@pytest.mark.slow
def test_a_process_of_another_hash_seed_meets_the_same_faults() -> None:
    """Also where tasks are cancelled and workers lost: nothing hangs on the order of a set."""
    program = "import sys\nfrom test_faults import told\nsys.stdout.write(told())\n"
    folders = (Path(__file__).parent, Path(__file__).parents[2])
    other = subprocess.run(
        [sys.executable, "-c", program],
        env={
            **os.environ,
            "PYTHONHASHSEED": "12345",
            "PYTHONPATH": os.pathsep.join(map(str, folders)),
        },
        capture_output=True,
        check=True,
        text=True,
    )
    assert other.stdout == told()


class Broken(NaiveDriver):
    """Drives correctly; its subclasses do not."""

    def __init__(self, simulation: Simulation, source: DataCoordinator, name: str) -> None:
        super().__init__(simulation, source, name, max_concurrency=4)
        self.simulation, self.source = simulation, source


class LeavesEnvironments(Broken):
    """Forgets to remove one."""

    async def close(self) -> None:
        """Start one that nobody stops."""
        spec = self.simulation.flow()._build(self.simulation.samples()[0]).m.data.container_args
        await self.simulation.envs.start(spec)
        await super().close()


class LosesSamples(Broken):
    """Takes one sample and never returns it."""

    async def run(self) -> None:
        """Take the first sample away."""
        self.source.drop(next(iter(self.source._books.queue)), Cause.CANCELLED)
        await super().run()


class LosesTokens(Broken):
    """Drops the last token of every sample."""

    async def run(self) -> None:
        """Tamper with what has ended."""
        told = self.source._on_ended
        assert told is not None

        def tell(sample: RolloutSample) -> None:
            for name in ("responses", "response_mask", "rollout_log_prob", "weight_versions"):
                setattr(sample, name, getattr(sample, name)[:-1])
            told(sample)

        self.source._on_ended = tell
        await super().run()


class HidesTokens(Broken):
    """Says of every sample that less was generated for it."""

    async def run(self) -> None:
        """Tamper with what has ended."""
        told = self.source._on_ended
        assert told is not None

        def tell(sample: RolloutSample) -> None:
            fewer = sample.facts.generated_tokens // 2
            sample.facts = replace(sample.facts, generated_tokens=fewer)
            told(sample)

        self.source._on_ended = tell
        await super().run()


class FailsToClose(Broken):
    """Has a bug at its end."""

    async def close(self) -> None:
        """Close, then fail."""
        await super().close()
        raise AssertionError("not closed")


class Hangs(Broken):
    """Waits for something that never comes."""

    async def run(self) -> None:
        """Wait."""
        await asyncio.Event().wait()


class Crashes(Broken):
    """Has a bug."""

    async def run(self) -> None:
        """Fail."""
        raise AssertionError("a bug")


@pytest.mark.parametrize(
    ("driver", "told"),
    [
        (LeavesEnvironments, "was left behind"),
        (LosesSamples, "never ended"),
        (LosesTokens, "submitted after"),
        (HidesTokens, "tokens are unaccounted for"),
        (Hangs, "hung"),
        (FailsToClose, "raised AssertionError: not closed"),
        (Crashes, "raised AssertionError: a bug"),
    ],
)
def test_the_checks_see_what_a_broken_executor_does(driver: type[Broken], told: str) -> None:
    """Each kind of damage is named."""
    run = run_with_faults(3, make_driver=driver)
    assert any(told in violation for violation in run.violations), run.violations
