"""Section 5: reuse and resume, by trajectory files and partial checkpoints."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.types import EpisodeFacts, SamplingParams, SWERolloutResult
from executors.task_scheduler import SchedulerArgs, SchedulerRolloutManager
from executors.task_scheduler.partial_checkpoint import PartialCheckpoint
from executors.task_scheduler.records import to_record, to_sample
from executors.task_scheduler.reuse import Origin
from executors.task_scheduler.stores import JsonStore

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample
    from executors.task_scheduler.rollout_manager import RolloutStep


class Run:
    """A training run's folder, and a new process in it each time."""

    def __init__(self, folder: Path, **args: Any) -> None:
        self.folder = folder
        self.args = SchedulerArgs(save=str(folder), rollout_batch_size=3, **args)
        self.environ: dict[str, str] = {}

    def manager(self, handler: parts.Handler | None = None) -> SchedulerRolloutManager:
        """Start a process."""
        store = JsonStore()
        it = parts.scheduler(
            parts.spec(handler),
            args=self.args,
            source=parts.source(AsyncioRunner(), n=2),
            checkpoint=PartialCheckpoint(self.folder / "partial", store=store),
        )
        return SchedulerRolloutManager(it, args=self.args, store=store, environ=self.environ)

    def files(self) -> list[str]:
        """List the trajectory files."""
        return sorted(path.name for path in self.folder.glob("trajectory*"))


def uids(step: RolloutStep) -> list[str]:
    """Name a step's prompts."""
    return [group[0].episode.uid for group in step.groups]


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


# --- resume -----------------------------------------------------------------------------------


async def killed(run: Run, *, after: int, rollout_id: int) -> parts.Handler:
    """Run a process that dies when `after` groups have ended."""
    hang, reached, armed = asyncio.Event(), asyncio.Event(), False

    async def behave(sample: RolloutSample, _: object) -> None:
        if armed and len({name.partition("#")[0] for name in handler.order}) > after:
            reached.set()
            await hang.wait()

    handler = parts.Handler(behave=behave)
    spec = parts.spec(handler)
    store = JsonStore()
    it = parts.scheduler(
        dataclasses.replace(spec, batch_size=1),
        args=run.args,
        source=parts.source(AsyncioRunner(), n=2),
        checkpoint=PartialCheckpoint(run.folder / "partial", store=store),
    )
    manager = SchedulerRolloutManager(it, args=run.args, store=store, environ=run.environ)
    for done in range(rollout_id):
        await manager.generate(done)
        handler.order.clear()
    armed = True
    async with asyncio.TaskGroup() as group:
        work = group.create_task(manager.generate(rollout_id))
        await reached.wait()
        work.cancel()
    return handler


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
    assert sorted(p.name for p in (tmp_path / "partial").iterdir()) == [
        "rollout_000002",
        "rollout_000003",
    ]


async def test_a_torn_checkpoint_is_told(tmp_path: Path) -> None:
    """Not resumed from silently, and not overwritten."""
    run = Run(tmp_path)
    plan = tmp_path / "partial" / "rollout_000000" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text('{"schema": "else"}')
    with pytest.raises(ConfigError, match="is no plan of the format"):
        await run.manager().generate(0)
    plan.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        await run.manager().generate(0)


# --- records ----------------------------------------------------------------------------------


def full_sample() -> RolloutSample:
    """Make a sample with something in every field."""
    sample = parts.sample("u", 3, note=[1, {"x": None}], share=np.float32(0.5))
    sample.sampling = SamplingParams(stop=("a",), stop_token_ids=(1, 2))
    sample.result = SWERolloutResult.SUBMIT
    sample.raw_prompt = [{"role": "user", "content": "fix"}]
    sample.prompts = np.arange(3, dtype=np.int32)
    sample.rollout_log_prob = np.array([-0.1], np.float32)
    sample.facts = EpisodeFacts(turns=2, messages=({"role": "user", "content": "x"},), patch="p")
    return sample


def test_a_record_gives_the_sample_back(tmp_path: Path) -> None:
    """Through a file, in every field."""
    sample = full_sample()
    store = JsonStore()
    store.save(tmp_path / "x" / "one.json", to_record(sample))
    back = to_sample(store.load(tmp_path / "x" / "one.json"))
    for name in ("episode", "task", "sampling", "result", "raw_prompt", "facts", "rewards"):
        assert getattr(back, name) == getattr(sample, name)
    assert back.metadata == {"note": [1, {"x": None}], "share": 0.5}
    assert back.prompts.dtype == np.int32
    assert back.prompts.tolist() == [0, 1, 2]
    assert back.rollout_log_prob.tobytes() == sample.rollout_log_prob.tobytes()


@pytest.mark.parametrize(
    ("metadata", "complaint"),
    [
        ({"a": {"b": [object()]}}, r"sample\.metadata\.a\.b\[0\] is a object"),
        ({"a": {(1, 2): 0}}, r"sample\.metadata\.a has the key \(1, 2\)"),
    ],
)
def test_what_is_no_plain_data_is_named(metadata: dict[str, Any], complaint: str) -> None:
    """A trainer's own objects cannot be read back without running its code."""
    with pytest.raises(ConfigError, match=complaint):
        to_record(parts.sample("u", **metadata))


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
