"""TaskScheduler: drives one step of a rollout or an evaluation. Plain async Python, no actor.

    fetch ─▶ distribute ─▶ batch ─▶ run ─ on_task_done ─▶ collector, progress, checkpoint, details
     source    task types     strategy   PlacementPool ▶ Evaluator ▶ handler

Owns the order of the step and nothing of an episode. Batches are admitted in order, all-or-nothing,
against the pool; without a pool they start at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.failures import expected_failure
from executors.task_scheduler.admission import assert_admittable
from executors.task_scheduler.batching import fifo_batching, round_robin
from executors.task_scheduler.data_source import copies_of
from executors.task_scheduler.eval_metrics import eval_result
from executors.task_scheduler.eval_outputs import NO_DETAILS, Details, details
from executors.task_scheduler.evaluator import Evaluator
from executors.task_scheduler.iteration import IterationPublisher, IterationState
from executors.task_scheduler.stopping import (
    StoppingCriteria,
    dataset_sampling,
    dataset_stopping,
)
from executors.task_scheduler.tasks import distribute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from agentflow.protocols import Runner
    from agentflow.types import RolloutSample, SamplingParams
    from executors.task_scheduler.args import SchedulerArgs
    from executors.task_scheduler.batching import BatchingStrategy
    from executors.task_scheduler.data_source import EvalDataset
    from executors.task_scheduler.eval_metrics import EvalResult
    from executors.task_scheduler.partial_checkpoint import PartialCheckpoint
    from executors.task_scheduler.placement import PlacementPool
    from executors.task_scheduler.ports import GroupSource, Progress
    from executors.task_scheduler.resource import Placement
    from executors.task_scheduler.spec import EvaluatorSpec
    from executors.task_scheduler.tasks import Batch, Task

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Orders:
    """One step's answers to its evaluators."""

    scheduler: TaskScheduler
    iteration: IterationState
    details: Details

    def stopping(self, spec: EvaluatorSpec, sample: RolloutSample) -> StoppingCriteria:
        return self.scheduler._resolve_stopping(  # noqa: SLF001  # its other half
            spec, sample, evaluating=self.iteration.evaluating
        )

    def on_turn(
        self, sample: RolloutSample, placement: Placement | None, turn: int, by: str
    ) -> None:
        self.details.turn(sample, placement, turn=turn, source=by)

    async def may_start(self) -> None:
        await self.scheduler._dispatch_resumed.wait()  # noqa: SLF001  # its other half


class TaskScheduler:
    """Fetch, distribute, batch, run."""

    def __init__(  # noqa: PLR0913  # parts are wired by keyword
        self,
        specs: Sequence[EvaluatorSpec],
        *,
        args: SchedulerArgs,
        source: GroupSource | None = None,
        eval_datasets: Sequence[EvalDataset] = (),
        pool: PlacementPool | None = None,
        batching_strategy: BatchingStrategy = fifo_batching,
        publisher: IterationPublisher | None = None,
        checkpoint: PartialCheckpoint | None = None,
        runner: Runner | None = None,
        collector: Callable[[Task], None] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """`collector` sees every task when it ends.

        Raises ConfigError for no spec, or two of one id.
        """
        self._specs = {spec.evaluator_id: spec for spec in specs}
        if not specs or len(self._specs) != len(specs):
            names = [spec.evaluator_id for spec in specs]
            raise ConfigError(f"evaluator specs {names}: give at least one, each with its own id")
        self._args = args
        self._source = source
        self._eval_datasets = eval_datasets
        self._pool = pool
        self._batch = batching_strategy
        self._publisher = publisher if publisher is not None else IterationPublisher()
        self._checkpoint = checkpoint
        self._runner = runner if runner is not None else AsyncioRunner()
        self._collector = collector
        self._progress = progress
        self._dispatch_resumed = asyncio.Event()
        self._dispatch_resumed.set()
        self._source_restored = False

    def pause_dispatch(self) -> None:
        """Let no sample start or go on, for example during a weight update."""
        self._dispatch_resumed.clear()

    def resume_dispatch(self) -> None:
        """Let them go on."""
        self._dispatch_resumed.set()

    async def close(self) -> None:
        """Close the handlers."""
        for spec in self._specs.values():
            await spec.handler.close()

    # --- a rollout ----------------------------------------------------------------------------

    async def execute_rollout(self, rollout_id: int) -> list[list[RolloutSample]]:
        """Roll out the groups of one training step, in the order in which they were fetched.

        With a partial checkpoint, a step that was interrupted goes on: its prompts are the same
        ones, and groups that had ended are not run again.
        """
        iteration = self._publisher.rollout(rollout_id)
        self._restore_source(rollout_id)
        tasks, todo = self._plan(rollout_id)
        with details(self._args, f"train_{rollout_id}") as written:

            def on_task_done(task: Task) -> None:
                if self._checkpoint is not None:
                    self._checkpoint.save(rollout_id, task)
                written.task(task)

            pending = set(todo)
            for task in tasks:
                if task not in pending:  # it ended before the step was interrupted
                    written.task(task)
            await self.run_all(todo, iteration=iteration, written=written, done=on_task_done)
            written.finish(sample for task in tasks for sample in task.samples)
        return [task.samples for task in tasks]

    def _restore_source(self, rollout_id: int) -> None:
        """Put the source where the last process left it, once."""
        if self._checkpoint is None or self._source is None or self._source_restored:
            return
        self._source_restored = True
        if (state := self._checkpoint.source_state(before=rollout_id)) is not None:
            self._source.load_state_dict(state)
        elif rollout_id > 0:
            logger.warning("no step before %d is kept: its prompts are the first", rollout_id)

    def _plan(self, rollout_id: int) -> tuple[list[Task], list[Task]]:
        """Give the step's tasks, and those of them that are still to run."""
        saved = None if self._checkpoint is None else self._checkpoint.load(rollout_id)
        if saved is not None:
            if self._source is not None:
                self._source.load_state_dict(saved.source_state)
            logger.info("rollout %d goes on: %d groups had ended", rollout_id, len(saved.done))
            return saved.tasks, [task for task in saved.tasks if task.index not in saved.done]
        tasks = self._distribute(self._fetch())
        if self._checkpoint is not None and self._source is not None:
            self._checkpoint.begin(rollout_id, tasks, self._source.state_dict())
        return tasks, tasks

    def _fetch(self) -> list[list[RolloutSample]]:
        if self._source is None:
            raise ConfigError("this scheduler has no data source, so there is nothing to roll out")
        groups: list[list[RolloutSample]] = []
        missing = self._args.rollout_batch_size
        while missing > 0 and (fetched := self._source.get_samples(missing)):
            groups += fetched
            missing -= len(fetched)
        return groups

    def _distribute(self, groups: Iterable[list[RolloutSample]]) -> list[Task]:
        return distribute(groups, default_type=next(iter(self._specs)))

    # --- an evaluation ------------------------------------------------------------------------

    async def execute_eval(self, rollout_id: int = 0) -> EvalResult:
        """Run every prompt of every data set, all copies, interleaved, under one `run_all`."""
        iteration = self._publisher.evaluation(rollout_id)
        tasks = self._eval_tasks()
        samples = [task.samples[0] for task in tasks]
        with details(self._args, str(rollout_id)) as written:
            await self.run_all(tasks, iteration=iteration, written=written, done=written.task)
            written.finish(samples)
        return eval_result([dataset.name for dataset in self._eval_datasets], samples)

    def check_eval(self) -> None:
        """Raise PlacementDeadlock where the pool could never admit the evaluation's batches."""
        self._launches(self._eval_tasks())

    def _eval_tasks(self) -> list[Task]:
        n = self._args.n_samples_per_eval_prompt
        queues = [copies_of(dataset, default=n) for dataset in self._eval_datasets]
        return self._distribute([sample] for sample in round_robin(queues))

    # --- running ------------------------------------------------------------------------------

    async def run_all(
        self,
        tasks: Sequence[Task],
        *,
        iteration: IterationState = IterationState(),  # noqa: B008  # frozen
        written: Details = NO_DETAILS,
        done: Callable[[Task], None] | None = None,
    ) -> None:
        """Batch the tasks, admit the batches in order, and run them to their ends.

        Raises PlacementDeadlock, before anything starts, when the pool can never admit a batch;
        OutputError and ConfigError as themselves, whatever else failed beside them.
        """
        for task in tasks:
            for sample in task.samples:
                sample.sampling = self._build_sampling_params(
                    sample, evaluating=iteration.evaluating
                )
        launches = self._launches(tasks)
        orders = _Orders(scheduler=self, iteration=iteration, details=written)
        try:
            async with asyncio.TaskGroup() as group:
                for batch, spec in launches:
                    await self._launch(group, batch, spec, orders=orders, done=done)
        except ExceptionGroup as group_of_errors:
            failure = expected_failure(group_of_errors)
            if failure is None:
                raise
            raise failure from group_of_errors

    def _launches(self, tasks: Sequence[Task]) -> list[tuple[Batch, EvaluatorSpec]]:
        launches = [(batch, self._resolve_spec(batch)) for batch in self._batch(tasks, self._specs)]
        if self._pool is not None:
            assert_admittable(self._pool, launches)
        return launches

    async def _launch(
        self,
        group: asyncio.TaskGroup,
        batch: Batch,
        spec: EvaluatorSpec,
        *,
        orders: _Orders,
        done: Callable[[Task], None] | None,
    ) -> None:
        """Start one batch, when the pool admits it."""

        def on_task_done(task: Task) -> None:
            self.on_task_done(task, done)

        pool = self._pool
        if pool is None:
            evaluator = Evaluator(spec, batch, tokens=None, orders=orders, runner=self._runner)
            group.create_task(evaluator.run(on_task_done))
            return
        lease = await pool.acquire_batch(spec.resource, spec.sample_resource, batch.samples)
        evaluator = Evaluator(spec, batch, tokens=lease.tokens, orders=orders, runner=self._runner)
        task = group.create_task(evaluator.run(on_task_done))
        task.add_done_callback(lambda _: pool.release(lease))

    def on_task_done(self, task: Task, done: Callable[[Task], None] | None = None) -> None:
        """Pass a finished task on: to what the step keeps, the collector, the progress bar."""
        if done is not None:
            done(task)
        if self._collector is not None:
            self._collector(task)
        if self._progress is not None:
            self._progress.update(1)

    # --- what is settled for each batch and sample --------------------------------------------

    def _resolve_spec(self, batch: Batch) -> EvaluatorSpec:
        """Find the spec of exactly the batch's type; else warn and take the first."""
        spec = self._specs.get(batch.task_type)
        if spec is None:
            spec = next(iter(self._specs.values()))
            logger.warning(
                "no EvaluatorSpec has the id %r (known: %s); its %d tasks are run by the first, %r",
                batch.task_type,
                ", ".join(self._specs),
                len(batch.tasks),
                spec.evaluator_id,
            )
        return spec

    def _resolve_stopping(
        self, spec: EvaluatorSpec, sample: RolloutSample, *, evaluating: bool = False
    ) -> StoppingCriteria:
        """Data set's own, then the command line's, then the spec's default."""
        flags = self._args.stopping(evaluating=evaluating)
        return dataset_stopping(sample.metadata).over(flags).over(spec.default_stopping)

    def _build_sampling_params(
        self, sample: RolloutSample, *, evaluating: bool = False
    ) -> SamplingParams:
        """Data set's own, then `--eval-*` when evaluating, then `--rollout-*`."""
        return dataset_sampling(sample.metadata).over(self._args.sampling(evaluating=evaluating))
