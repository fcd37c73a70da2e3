"""What admission and batching cost a task: `python -m benchmarks.task_admission --json FILE`.

100,000 tasks with instant handlers go through batching, the pool, evaluators and tokens. Gated are
two ratios of runs of one round in one process, medians of rounds: the CPU of batching and
admitting a task to that of a bare loop that appends tasks to lists, and the CPU of one of 100,000
tasks, evaluator and handler included, to that of one of 1,000.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from typing import TYPE_CHECKING, Final

from agentflow.types import Cause, Ending, EpisodeId, RolloutSample
from benchmarks.report import output_file, positive, write_report
from executors.task_scheduler import (
    AgentResult,
    EvaluatorSpec,
    IterationPublisher,
    NodeResource,
    PlacementPool,
    Resource,
    SchedulerArgs,
    Task,
    TaskConfig,
    TaskScheduler,
    fifo_batching,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from executors.task_scheduler import RunContext

FEW, MANY = 1_000, 100_000
ROUNDS = 5
NODES = 3
BATCH_SIZE = 8

MAX_GROWTH = 1.3
MAX_RATIO = 60.0
"""One append of a fifth of a microsecond to batching, and a token's exact search of three nodes."""


class InstantHandler:
    """Ends every sample at once."""

    async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:  # noqa: ARG002
        """Submit."""
        return AgentResult(ending=Ending(cause=Cause.SUBMITTED, phase="run"))

    async def eval(
        self,
        sample: RolloutSample,  # noqa: ARG002
        result: AgentResult,
        context: RunContext,  # noqa: ARG002
    ) -> AgentResult:
        """Judge nothing."""
        return result

    async def close(self) -> None:
        """Hold nothing."""


SPEC = EvaluatorSpec(
    evaluator_id="swe",
    handler=InstantHandler(),
    resource=Resource(concurrency=BATCH_SIZE, cpu=96, memory_gb=384),
    run_resource=Resource(cpu=4, memory_gb=16),
    batch_size=BATCH_SIZE,
)


def make_tasks(count: int) -> list[Task]:
    """Make tasks of one sample each."""
    config = TaskConfig(task_type="swe")
    return [
        Task(
            config=config,
            index=index,
            samples=[RolloutSample(episode=EpisodeId(uid=str(index)), task={})],
        )
        for index in range(count)
    ]


def cluster() -> PlacementPool:
    """Make a pool of three nodes."""
    return PlacementPool(
        NodeResource(node=f"n{i}", gpus=(0, 1, 2, 3), cpu=96, memory_gb=384) for i in range(NODES)
    )


def schedule(tasks: list[Task]) -> None:
    """Send tasks through everything."""
    scheduler = TaskScheduler(
        [SPEC], args=SchedulerArgs(), pool=cluster(), publisher=IterationPublisher(environ={})
    )
    asyncio.run(scheduler.run_all(tasks))


def batch(tasks: list[Task]) -> None:
    """Batch alone."""
    fifo_batching(tasks, {"swe": SPEC})


def admit(tasks: list[Task]) -> None:
    """Batch, and take and give back the tokens of every batch."""
    pool = cluster()
    for portion in fifo_batching(tasks, {"swe": SPEC}):
        lease = pool.try_acquire_batch(SPEC.resource, SPEC.sample_resource, portion.samples)
        assert lease is not None
        pool.release(lease)


def bare(tasks: list[Task]) -> None:
    """Append every task to a list of its type, and every sample to a list of done ones."""
    by_type: dict[str, list[Task]] = {}
    done: list[RolloutSample] = []
    for task in tasks:
        by_type.setdefault(task.config.task_type, []).append(task)
        done.extend(task.samples)


WORKS: Final[dict[str, tuple[Callable[[list[Task]], None], int]]] = {
    "task_cpu_us": (schedule, MANY),
    "task_cpu_us_of_1000": (schedule, FEW),
    "admission_cpu_us": (admit, MANY),
    "batching_cpu_us": (batch, MANY),
    "bare_cpu_us": (bare, MANY),
}
"""What is measured in every round, and with how many tasks."""


def cpu_per_task_us(work: Callable[[list[Task]], None], count: int) -> float:
    """CPU microseconds of one of `count` tasks; small counts are repeated to be measurable."""
    portions = [make_tasks(count) for _ in range(max(1, FEW * 10 // count))]
    gc.collect()
    began = time.process_time()
    for tasks in portions:
        work(tasks)
    return (time.process_time() - began) / (count * len(portions)) * 1e6


def figures(rounds: int) -> dict[str, float]:
    """Measure everything once a round; a ratio is of one round's runs."""
    seen: dict[str, list[float]] = {name: [] for name in WORKS}
    for _ in range(rounds):
        for name, (work, count) in WORKS.items():
            seen[name].append(cpu_per_task_us(work, count))
    return {name: statistics.median(taken) for name, taken in seen.items()} | {
        "ratio_to_bare": _median_ratio(seen["admission_cpu_us"], seen["bare_cpu_us"]),
        "growth": _median_ratio(seen["task_cpu_us"], seen["task_cpu_us_of_1000"]),
    }


def _median_ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return statistics.median(one / other for one, other in zip(ones, others, strict=True))


def main() -> None:
    """Print the table, write the file, and fail where a gate does."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.task_admission", description=__doc__
    )
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--rounds", type=positive, default=ROUNDS, help="medians are over so many")
    chosen = parser.parse_args()
    measured = figures(chosen.rounds)
    for name, value in measured.items():
        print(f"{name:24} {value:10.3f}")
    config = {"few": FEW, "many": MANY, "nodes": NODES, "batch_size": BATCH_SIZE}
    write_report(chosen.json, measured, config=config)
    if measured["growth"] > MAX_GROWTH or measured["ratio_to_bare"] > MAX_RATIO:
        raise SystemExit(f"a gate fails: growth <= {MAX_GROWTH}, ratio <= {MAX_RATIO}")


if __name__ == "__main__":
    main()
