"""Section 1: four moves a step; section 4: an evaluator's life, from the scheduler's side."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import scheduler_parts as parts

from executors.task_scheduler import (
    EvalDataset,
    NodeResource,
    PlacementPool,
    Resource,
    SchedulerArgs,
    TaskScheduler,
    fifo_batching,
)
from executors.task_scheduler.resource import ONE

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample
    from executors.task_scheduler import RunContext, Task


async def test_a_step_fetches_distributes_batches_and_runs_and_streams_its_results() -> None:
    """In that order; each task is heard of as it ends, the next batches still to come."""
    seen: list[str] = []

    class Source:
        """Gives one group at a time."""

        def get_samples(self, count: int) -> list[list[RolloutSample]]:
            """Say so."""
            seen.append(f"fetch {count}")
            return [[parts.sample(f"u{count}", _task_type="two")]]

        def state_dict(self) -> dict[str, object]:
            """Keep nothing."""
            return {}

        def load_state_dict(self, state: object) -> None:
            """Load nothing."""

    def batching(tasks: Any, specs: Any) -> Any:
        seen.append("batch " + " ".join(task.config.task_type for task in tasks))
        return fifo_batching(tasks, specs)

    async def run(sample: RolloutSample, _: RunContext) -> None:
        seen.append(f"run {sample.episode.uid}")

    one_at_a_time = {"run_resource": Resource(cpu=1), "resource": Resource(cpu=1)}
    it = parts.scheduler(
        parts.spec(evaluator_id="one"),
        parts.spec(parts.Handler(behave=run), "two", **one_at_a_time),
        args=SchedulerArgs(rollout_batch_size=2),
        source=Source(),
        batching_strategy=batching,
        pool=PlacementPool([NodeResource(node="a", cpu=1)]),
        collector=lambda task: seen.append(f"done {task.index}"),
    )
    await it.execute_rollout(0)
    moves = ["fetch 2", "fetch 1", "batch two two", "run u2", "done 0", "run u1", "done 1"]
    assert seen == moves


async def test_a_scheduler_batches_fifo_unless_told_otherwise() -> None:
    """The only strategy that ships is the default."""
    it = TaskScheduler([parts.spec()], args=SchedulerArgs())
    assert it._batch is fifo_batching


async def test_all_samples_of_an_evaluation_share_one_run_all() -> None:
    """The strategy sees every copy of every set at once."""
    sizes: list[int] = []

    def batching(tasks: Any, specs: Any) -> Any:
        sizes.append(len(tasks))
        return fifo_batching(tasks, specs)

    sets = [EvalDataset(name=name, rows=parts.rows(2), n_samples=3) for name in "AB"]
    await parts.scheduler(eval_datasets=sets, batching_strategy=batching).execute_eval()
    assert sizes == [12]


async def test_an_evaluator_is_made_for_one_batch() -> None:
    """Each has a semaphore of its own: three batches run beside each other, one sample each."""
    together = asyncio.Barrier(3)
    handler = parts.Handler(behave=lambda *_: together.wait())
    spec = parts.spec(handler, resource=Resource(concurrency=1), batch_size=1)
    await parts.scheduler(spec).run_all([parts.task(index=i) for i in range(3)])
    assert handler.most_running == 3


async def test_the_samples_of_a_group_run_beside_each_other() -> None:
    """A group is as slow as its slowest sample, not as their sum."""
    together = asyncio.Barrier(4)
    handler = parts.Handler(behave=lambda *_: together.wait())
    await parts.scheduler(parts.spec(handler)).run_all([parts.task(n=4)])
    assert handler.most_running == 4


async def test_the_peak_of_a_sample_is_taken_from_the_global_pool_before_it_runs() -> None:
    """The larger of running and judging, for each resource, and given back at the end."""
    pool = PlacementPool([NodeResource(node="a", cpu=8, memory_gb=32)])
    free: list[tuple[int, int, int]] = []

    async def look(*_: object) -> None:
        free.append(pool.free()["a"])

    spec = parts.spec(
        parts.Handler(behave=look, judge=look),
        resource=Resource(concurrency=2, cpu=8, memory_gb=32),
        run_resource=Resource(cpu=4, memory_gb=2),
        eval_resource=Resource(cpu=1, memory_gb=8),
    )
    await parts.scheduler(spec, pool=pool).run_all([parts.task()])
    assert free == [(0, 4 * ONE, 24 * ONE)] * 2
    assert pool.free()["a"] == (0, 8 * ONE, 32 * ONE)


async def test_details_are_written_while_the_step_runs(tmp_path: Path) -> None:
    """A line is there as soon as its task has ended; the summary comes at the end."""
    file = tmp_path / "eval_details" / "0.jsonl"
    lines: list[int] = []

    def collect(_: Task) -> None:
        lines.append(len(file.read_bytes().splitlines()))
        assert not file.with_name("0.summary.json").exists()

    args = SchedulerArgs(save=str(tmp_path), save_eval_details=True)
    sets = [EvalDataset(name="A", rows=parts.rows(3))]
    await parts.scheduler(args=args, eval_datasets=sets, collector=collect).execute_eval()
    assert lines == [1, 2, 3]
    assert json.loads(file.with_name("0.summary.json").read_bytes())["samples"] == 3


def test_the_pool_is_made_from_the_flags() -> None:
    """`--env-cluster-layout` with its fallbacks; None, and so ungated, without it."""
    assert SchedulerArgs().pool() is None
    args = SchedulerArgs(env_cluster_layout='{"a": [0]}', env_num_cpus=8, env_memory_gb=32)
    pool = args.pool()
    assert pool is not None
    assert pool.free() == {"a": (ONE, 8 * ONE, 32 * ONE)}
