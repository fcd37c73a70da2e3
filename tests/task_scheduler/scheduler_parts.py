"""A handler that does as it is told, and the little that schedulers need around it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.types import Cause, Ending, EpisodeFacts, EpisodeId, RolloutSample
from executors.task_scheduler import (
    AgentResult,
    EvaluatorSpec,
    MultiDataSource,
    Resource,
    SchedulerArgs,
    Task,
    TaskConfig,
    TaskScheduler,
    TrainDataset,
)
from executors.task_scheduler.iteration import IterationPublisher

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from executors.task_scheduler import RunContext


@dataclass
class Handler:
    """Ends every sample at once, submitted, with `reward`; or as `behave` says."""

    reward: Callable[[RolloutSample], float] = lambda _: 1.0
    behave: Callable[[RolloutSample, RunContext], Any] | None = None
    """Awaited in `run`; may raise."""
    judge: Callable[[RolloutSample], Any] | None = None
    """Awaited in `eval`; may raise."""
    turns: int = 1
    cause: Cause = Cause.SUBMITTED
    hold: asyncio.Event | None = None
    """What `run` waits for."""
    contexts: dict[str, RunContext] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    """Episodes in the order in which they began."""
    running: int = 0
    most_running: int = 0
    closed: bool = False

    async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
        """Roll out."""
        self.order.append(str(sample.episode))
        self.contexts[str(sample.episode)] = context
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            for turn in range(self.turns):
                context.on_turn(turn, "student")
            if self.hold is not None:
                await self.hold.wait()
            if self.behave is not None:
                await self.behave(sample, context)
        except BaseException:
            self.running -= 1
            raise
        return AgentResult(
            ending=Ending(cause=self.cause, phase="run"),
            prompt_ids=np.array([1, 2], np.int32),
            response_ids=np.array([3, 4, 5], np.int32),
            loss_mask=np.array([1, 0, 1], np.int8),
            log_probs=np.array([-0.5, 0.0, -0.25], np.float32),
            weight_versions=np.array([7, -1, 7], np.int32),
            facts=EpisodeFacts(turns=self.turns),
        )

    async def eval(
        self, sample: RolloutSample, result: AgentResult, context: RunContext
    ) -> AgentResult:
        """Judge."""
        try:
            if self.judge is not None:
                await self.judge(sample)
        finally:
            self.running -= 1
        result.reward = self.reward(sample)
        return result

    async def close(self) -> None:
        """Say so."""
        self.closed = True


def spec(handler: Handler | None = None, evaluator_id: str = "swe", **fields: Any) -> EvaluatorSpec:
    """Make a spec with room for many samples."""
    fields.setdefault("resource", Resource(concurrency=1000))
    return EvaluatorSpec(evaluator_id=evaluator_id, handler=handler or Handler(), **fields)


def sample(uid: str = "u", replica_index: int = 0, **metadata: Any) -> RolloutSample:
    """Make a sample."""
    episode = EpisodeId(uid=uid, replica_index=replica_index)
    return RolloutSample(episode=episode, task={"instance_id": uid}, metadata=metadata)


def task(task_type: str = "swe", *, n: int = 1, index: int = 0) -> Task:
    """Make a task of `n` samples."""
    samples = [sample(f"{task_type}-{index}", i) for i in range(n)]
    return Task(config=TaskConfig(task_type=task_type), index=index, samples=samples)


def rows(count: int, name: str = "task") -> list[dict[str, str]]:
    """Make task rows."""
    return [{"instance_id": f"{name}-{i}"} for i in range(count)]


def source(runner: Any, *, n: int = 1, count: int = 10, **fields: Any) -> MultiDataSource:
    """Make a source of one data set."""
    dataset = TrainDataset(name="d", rows=rows(count), **fields)
    return MultiDataSource([dataset], n_samples_per_prompt=n, runner=runner)


def scheduler(
    *specs: EvaluatorSpec, args: SchedulerArgs | None = None, **parts: Any
) -> TaskScheduler:
    """Make a scheduler that leaves the process's environment alone."""
    parts.setdefault("publisher", IterationPublisher(environ={}))
    return TaskScheduler(specs or (spec(),), args=args or SchedulerArgs(), **parts)
