"""Section 5: resume, by partial checkpoints."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import scheduler_parts as parts
from saved_run import Run, killed, uids

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.runs.files import OutputError
from executors.task_scheduler import (
    MultiDataSource,
    TrainDataset,
)
from executors.task_scheduler.reuse import Origin

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("rollout_id", [0, 2])
@pytest.mark.parametrize("after", [0, 1, 2])
async def test_an_interrupted_rollout_goes_on_without_a_repeated_or_skipped_prompt(
    tmp_path: Path, after: int, rollout_id: int
) -> None:
    """What had ended is not run again, the rest is; later steps are those of an unbroken run."""
    fresh = {"STACX_FORCE_FRESH_ROLLOUT": "1"}
    unbroken = Run(tmp_path / "unbroken")
    unbroken.environ = dict(fresh)
    whole = unbroken.manager()
    expected = [uids(await whole.generate(i)) for i in range(rollout_id + 3)]

    run = Run(tmp_path / "run")
    run.environ = dict(fresh)
    await killed(run, after=after, rollout_id=rollout_id)
    handler = parts.Handler()
    resumed = run.manager(handler)
    step = await resumed.generate(rollout_id)
    assert uids(step) == expected[rollout_id]
    again = {name.partition("#")[0] for name in handler.order}
    assert again == set(expected[rollout_id][after:])
    assert all(sample.rewards == 1.0 for group in step.groups for sample in group)
    assert all(sample.responses.tolist() == [3, 4, 5] for group in step.groups for sample in group)
    assert uids(await resumed.generate(rollout_id + 1)) == expected[rollout_id + 1]
    assert uids(await resumed.generate(rollout_id + 2)) == expected[rollout_id + 2]


async def test_a_resumed_rollouts_details_have_a_line_for_every_sample(tmp_path: Path) -> None:
    """Those that had ended before are told again: the files of a step are whole."""
    run = Run(tmp_path, save_eval_details=True)
    await killed(run, after=2, rollout_id=0)
    await run.manager().generate(0)
    lines = (tmp_path / "eval_details" / "train_0.jsonl").read_bytes().splitlines()
    assert len(lines) == 6


async def test_a_process_killed_between_two_steps_goes_on_with_the_next_prompts(
    tmp_path: Path,
) -> None:
    """The plan of the step before says where the source stood."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    whole = parts.source(AsyncioRunner(), n=2).get_samples(6)
    await run.manager().generate(0)
    step = await run.manager().generate(1)
    assert uids(step) == [group[0].episode.uid for group in whole[3:]]


async def test_older_checkpoints_are_forgotten(tmp_path: Path) -> None:
    """Only the step before is kept, for its source."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    manager = run.manager()
    for i in range(4):
        await manager.generate(i)
    assert sorted(p.name for p in (tmp_path / "partial").glob("rollout_*")) == [
        "rollout_000002",
        "rollout_000003",
    ]


async def test_a_torn_checkpoint_is_told(tmp_path: Path) -> None:
    """Not resumed from silently, not overwritten; and what to do about it."""
    run = Run(tmp_path)
    plan = tmp_path / "partial" / "rollout_000000" / "plan.json"
    plan.parent.mkdir(parents=True)
    for text in TORN:
        plan.write_text(text)
        with pytest.raises(ConfigError, match=r"plan\.json.*; remove .*, and the step is run anew"):
            await run.manager().generate(0)
        assert plan.read_text() == text
    shutil.rmtree(plan.parent)
    assert len((await run.manager().generate(0)).groups) == 3


async def test_a_torn_group_is_told_and_run_again_once_it_is_gone(tmp_path: Path) -> None:
    """The others are kept."""
    run = Run(tmp_path)
    await killed(run, after=2, rollout_id=0)
    group = tmp_path / "partial" / "rollout_000000" / "group_000000.json"
    group.write_bytes(group.read_bytes()[:-9])
    with pytest.raises(ConfigError, match=r"group_000000\.json.*its group is run again"):
        await run.manager().generate(0)
    group.unlink()
    handler = parts.Handler()
    await run.manager(handler).generate(0)
    assert len(handler.order) == 4


async def test_a_torn_source_is_told(tmp_path: Path) -> None:
    """Prompts are not drawn from a guess."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    await run.manager().generate(0)
    file = tmp_path / "partial" / "source_000000.json"
    state = json.loads(file.read_bytes())
    for torn in ([], {}, {**state, "chance": [3, [1], None]}, {**state, "cursors": {}}):
        file.write_text(json.dumps(torn))
        with pytest.raises(ConfigError, match=r"damaged|the checkpoint's data sets are None"):
            await run.manager().generate(1)


async def test_a_trainer_that_goes_back_to_its_own_checkpoint_gets_the_same_prompts_anew(
    tmp_path: Path,
) -> None:
    """Steps behind it are rolled out again: what was kept of them came from other weights."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    manager = run.manager()
    steps = [uids(await manager.generate(i)) for i in range(7)]
    handler = parts.Handler()
    manager = run.manager(handler)
    assert [uids(await manager.generate(i)) for i in range(2, 7)] == steps[2:]
    assert len(handler.order) == 5 * 6


async def test_the_step_before_is_kept_for_a_trainer_that_runs_a_step_behind(
    tmp_path: Path,
) -> None:
    """Both are given again, and neither is run."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    manager = run.manager()
    steps = [uids(await manager.generate(i)) for i in range(4)]
    handler = parts.Handler()
    manager = run.manager(handler)
    assert [uids(await manager.generate(i)) for i in (2, 3)] == steps[2:]
    assert handler.order == []


async def test_a_folder_that_was_half_forgotten_is_no_step(tmp_path: Path) -> None:
    """Killed while it was removed: its groups are not taken for those of a new plan."""
    run = Run(tmp_path)
    await run.manager().generate(0)
    (tmp_path / "partial" / "rollout_000000" / "plan.json").unlink()
    handler = parts.Handler()
    await run.manager(handler).generate(0)
    assert len(handler.order) == 6


async def test_a_data_set_that_changed_in_between_is_told(tmp_path: Path) -> None:
    """As many rows, but others, or in another order: a position means nothing there."""
    run = Run(tmp_path)
    run.environ["STACX_FORCE_FRESH_ROLLOUT"] = "1"
    await run.manager().generate(0)
    for changed in (parts.rows(10, "other"), parts.rows(10)[::-1]):
        dataset = TrainDataset(name="d", rows=changed)
        source = MultiDataSource([dataset], n_samples_per_prompt=2, runner=AsyncioRunner())
        with pytest.raises(ConfigError, match="resume with the same ones"):
            await run.manager(source=source).generate(1)


async def test_two_runs_do_not_write_into_one_folder(tmp_path: Path) -> None:
    """The second is refused before anything starts; reading what is there is no harm."""
    first, second = Run(tmp_path), Run(tmp_path)
    manager = first.manager()
    await manager.generate(0)
    handler = parts.Handler()
    other = second.manager(handler)
    with pytest.raises(ConfigError, match="is in use by another run"):
        await other.generate(0)
    assert handler.order == []
    assert (await other.generate(1)).origin is Origin.AUTO_REUSED
    await manager.close()
    assert (await other.generate(0)).origin is Origin.FRESH


async def test_output_that_cannot_be_written_is_told_as_such(tmp_path: Path) -> None:
    """OutputError itself, whatever ended beside it."""

    async def behave(*_: object) -> None:
        folder = tmp_path / "partial" / "rollout_000000" / "group_000001.json"
        folder.mkdir(exist_ok=True)  # stands where the group's file would

    with pytest.raises(OutputError, match=r"cannot write .*group_000001\.json"):
        await Run(tmp_path).manager(parts.Handler(behave=behave)).generate(0)


TORN = (
    "{",
    "[]",
    '{"schema": "else"}',
    '{"schema": "agentflow-partial/2"}',
    '{"schema": "agentflow-partial/2", "tasks": [{}]}',
    '{"schema": "agentflow-partial/2", "tasks": {"__array__": [1, 2, 3]}}',
)
