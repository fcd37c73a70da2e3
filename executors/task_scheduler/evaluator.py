"""Evaluator: runs the samples of one batch and is discarded. It holds no domain logic.

    semaphore (Resource.concurrency) ▶ token ▶ run ▶ eval ▶ copy tokens ▶ on_task_done

A sample holds its token from before it runs until after it is judged, never letting go in between,
so that at most `concurrency` containers exist at once. What a handler raises aborts its sample and
no other.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

from agentflow.aio import boundary
from agentflow.errors import EpisodeError, RolloutGenerationAborted
from agentflow.outcomes import make_fallback
from agentflow.types import Blame
from executors.task_scheduler.agents import RunContext
from executors.task_scheduler.placement import LocalPool
from executors.task_scheduler.termination_summary import (
    REASON,
    HandlerFailed,
    _annotate_abort,
    abort_sample,
    classify_termination,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from agentflow.protocols import Runner
    from agentflow.types import RolloutSample
    from executors.task_scheduler.agents import AgentResult
    from executors.task_scheduler.iteration import IterationState
    from executors.task_scheduler.resource import Placement
    from executors.task_scheduler.spec import EvaluatorSpec
    from executors.task_scheduler.stopping import StoppingCriteria
    from executors.task_scheduler.tasks import Batch, Task

logger = logging.getLogger(__name__)

RUN: Final = "run"
EVAL: Final = "eval"


class Orders(Protocol):
    """What a scheduler tells its evaluators."""

    @property
    def iteration(self) -> IterationState:
        """The step under way."""
        ...

    def stopping(self, spec: EvaluatorSpec, sample: RolloutSample) -> StoppingCriteria:
        """Settle when the sample is ended."""
        ...

    def on_turn(
        self, sample: RolloutSample, placement: Placement | None, turn: int, by: str
    ) -> None:
        """Hear of a turn."""
        ...

    async def may_start(self) -> None:
        """Wait while nothing may start."""
        ...


class Evaluator:
    """One batch's run with one spec."""

    def __init__(
        self,
        spec: EvaluatorSpec,
        batch: Batch,
        *,
        tokens: Sequence[Placement] | None,
        orders: Orders,
        runner: Runner,
    ) -> None:
        """`tokens` are those of the batch's lease; None where batches are not gated."""
        self._spec = spec
        self._batch = batch
        self._semaphore = asyncio.Semaphore(spec.resource.concurrency)
        self._tokens = LocalPool(tokens)
        self._orders = orders
        self._runner = runner

    async def run(self, on_task_done: Callable[[Task], None]) -> None:
        """Run every task; `on_task_done` sees each as it ends."""
        async with asyncio.TaskGroup() as group:
            for task in self._batch.tasks:
                group.create_task(self._run_task(task, on_task_done))

    async def _run_task(self, task: Task, on_task_done: Callable[[Task], None]) -> None:
        if len(task.samples) == 1:
            await self._execute_sample(task.samples[0])
        else:
            async with asyncio.TaskGroup() as group:
                for sample in task.samples:
                    group.create_task(self._execute_sample(sample))
        on_task_done(task)

    # --- one sample ---------------------------------------------------------------------------

    async def _execute_sample(self, sample: RolloutSample) -> None:
        """Run and judge one sample under one token; afterwards it has ended, whatever happened."""
        async with self._semaphore, self._tokens.token() as placement:
            turns: list[int] = []

            def on_turn(turn: int, source: str) -> None:
                turns.append(turn)
                self._orders.on_turn(sample, placement, turn, source)

            context = RunContext(
                placement=placement,
                stopping=self._orders.stopping(self._spec, sample),
                iteration=self._orders.iteration,
                on_turn=on_turn,
            )
            began, phase = self._runner.wall_time(), RUN
            try:
                result = await self._run(sample, context)
                sample.metadata.setdefault(REASON, str(result.ending.cause))
                phase = EVAL
                with _handlers_own():
                    result = await self._spec.handler.eval(sample, result, context)
                self._end(sample, result)
            except EpisodeError as error:
                logger.warning("%s aborted in %s: %s", sample.episode, phase, error, exc_info=True)
                abort_sample(sample, error, phase=phase)
                _annotate_abort(
                    sample,
                    error=error,
                    phase=phase,
                    window=(began, self._runner.wall_time()),
                    node_ip=None if placement is None else placement.node,
                    turns=len(set(turns)),
                )

    async def _run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
        """Run the sample, again after every interruption, from where it stood."""
        while True:
            await self._orders.may_start()
            try:
                with _handlers_own():
                    return await self._spec.handler.run(sample, context)
            except RolloutGenerationAborted:
                logger.info("%s was interrupted and goes on", sample.episode)

    def _end(self, sample: RolloutSample, result: AgentResult) -> None:
        """Copy the result; an episode that the infrastructure ended is masked."""
        _populate_token_data(sample, result)
        sample.metadata[REASON] = str(result.ending.cause)
        sample.termination = classify_termination(sample.rewards, sample.metadata[REASON])
        if not len(sample.responses):
            make_fallback(sample, result.ending)
        sample.remove_sample = result.ending.cause.blame is Blame.INFRASTRUCTURE


@contextmanager
def _handlers_own() -> Iterator[None]:
    """Name what escapes from a handler; so does a cancelling that nobody asked this task for."""
    try:
        with boundary(HandlerFailed):
            yield
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise HandlerFailed("CancelledError: a part of the handler was cancelled") from error


def _populate_token_data(sample: RolloutSample, result: AgentResult) -> None:
    """Copy ids, log-probs and mask, and what else the trainer gets, off the result."""
    sample.prompts = result.prompt_ids
    sample.responses = result.response_ids
    sample.response_mask = result.loss_mask
    sample.rollout_log_prob = result.log_probs
    sample.weight_versions = result.weight_versions
    sample.rewards = result.reward
    sample.ending = result.ending
    sample.result = result.result
    sample.facts = result.facts
