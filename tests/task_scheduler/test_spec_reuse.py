"""Section 5: reuse, by trajectory files."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest
import scheduler_parts as parts
from saved_run import Run, uids

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.task_scheduler import (
    SchedulerArgs,
    SchedulerRolloutManager,
)
from executors.task_scheduler.reuse import Origin
from executors.task_scheduler.stores import JsonStore

if TYPE_CHECKING:
    from pathlib import Path


# --- fresh and reuse --------------------------------------------------------------------------


async def test_force_fresh_rolls_every_step_out_and_saves_both_files(tmp_path: Path) -> None:
    """trajectory_sft_samples and a per-iteration copy."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    manager = run.manager()
    steps = [await manager.generate(i) for i in range(2)]
    assert [step.origin for step in steps] == [Origin.FRESH, Origin.FRESH]
    assert uids(steps[0]) != uids(steps[1])
    assert run.files() == [
        "trajectory_sft_samples.json",
        "trajectory_sft_samples_iter_000.json",
        "trajectory_sft_samples_iter_001.json",
    ]


async def test_per_iteration_files_can_be_switched_off(tmp_path: Path) -> None:
    """STACX_SAVE_PER_ITER_PT is on by default."""
    run = Run(tmp_path)
    run.environ["STACX_SAVE_PER_ITER_PT"] = "0"
    await run.manager().generate(0)
    assert run.files() == ["trajectory_sft_samples.json"]


async def test_without_a_switch_later_steps_reuse_step_0(tmp_path: Path) -> None:
    """Multi-epoch SFT: the handler is not asked again."""
    handler = parts.Handler()
    manager = Run(tmp_path).manager(handler)
    first = await manager.generate(0)
    asked = len(handler.order)
    later = await manager.generate(1)
    assert (first.origin, later.origin) == (Origin.FRESH, Origin.AUTO_REUSED)
    assert uids(later) == uids(first)
    assert len(handler.order) == asked


async def test_reuse_always_loads_the_file(tmp_path: Path) -> None:
    """Also at step 0; and says so when there is none."""
    run = Run(tmp_path)
    run.environ["STACX_REUSE_ROLLOUT"] = "1"
    with pytest.raises(ConfigError, match="STACX_REUSE_ROLLOUT=1, but there is no"):
        await run.manager().generate(0)
    run.environ.clear()
    first = await run.manager().generate(0)
    run.environ["STACX_REUSE_ROLLOUT"] = "1"
    again = await run.manager().generate(0)
    assert again.origin is Origin.REUSED
    assert uids(again) == uids(first)


async def test_a_directory_of_per_iteration_files_is_replayed_in_sequence(tmp_path: Path) -> None:
    """The n-th step gets the n-th file; behind the last one there is an error."""
    old = Run(tmp_path / "old")
    old.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    manager = old.manager()
    first = [uids(await manager.generate(i)) for i in (3, 11)]
    new = Run(tmp_path / "new")
    new.environ["STACX_REUSE_PER_ITER_DIR"] = str(tmp_path / "old")
    replay = new.manager()
    assert [uids(await replay.generate(i)) for i in range(2)] == first
    with pytest.raises(ConfigError, match="holds 2 per-iteration files"):
        await replay.generate(2)


async def test_contradicting_switches_are_refused(tmp_path: Path) -> None:
    """Fresh and reused at once is neither."""
    run = Run(tmp_path)
    run.environ.update(STACX_FORCE_FRESH_ROLLOUT="1", STACX_REUSE_ROLLOUT="1")
    with pytest.raises(ConfigError, match="contradict each other"):
        await run.manager().generate(0)
    run.environ = {"STACX_REUSE_ROLLOUT": "yes"}
    with pytest.raises(ConfigError, match="it must be 0 or 1"):
        await run.manager().generate(0)


async def test_survivors_are_what_is_saved(tmp_path: Path) -> None:
    """Filters run before the file is written."""
    run = Run(tmp_path, rejection_min_reward=0.5)
    handler = parts.Handler(reward=lambda sample: float(sample.episode.replica_index))
    step = await run.manager(handler).generate(0)
    assert step.rejected == 3
    again = await run.manager().generate(1)
    assert [[s.episode.replica_index for s in group] for group in again.groups] == [[1]] * 3


async def test_a_step_without_survivors_is_told_and_not_saved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else every later step would reuse nothing."""
    run = Run(tmp_path, rejection_min_reward=0.5)
    step = await run.manager(parts.Handler(reward=lambda _: 0.0)).generate(0)
    assert (step.groups, step.rejected) == ([], 6)
    assert "gives nothing to train on: 6 samples were rejected" in caplog.text
    assert run.files() == []
    assert (await run.manager().generate(1)).origin is Origin.FRESH


def test_a_manager_needs_folder_and_store_together() -> None:
    """One without the other saves nothing."""
    with pytest.raises(ConfigError, match="need both --save"):
        SchedulerRolloutManager(parts.scheduler(), args=SchedulerArgs(), store=JsonStore())


async def test_without_a_folder_a_step_is_rolled_out_and_reuse_is_refused() -> None:
    """There is nowhere to read from."""
    it = parts.scheduler(
        args=SchedulerArgs(rollout_batch_size=2), source=parts.source(AsyncioRunner())
    )
    environ: dict[str, str] = {}
    manager = SchedulerRolloutManager(it, args=SchedulerArgs(), environ=environ)
    assert len((await manager.generate(1)).groups) == 2
    environ["STACX_REUSE_ROLLOUT"] = "1"
    with pytest.raises(ConfigError, match="needs --save"):
        await manager.generate(1)
    with contextlib.suppress(ConfigError):
        await manager.close()
