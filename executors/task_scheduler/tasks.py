"""Task and Batch: what the scheduler distributes, and in which portions it is admitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentflow.types import RolloutSample

TASK_TYPE: Final = "_task_type"
"""Key of a sample's metadata that names its evaluator; without it the first spec is meant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConfig:
    """What decides how a task is run."""

    task_type: str
    """The evaluator that it is for."""


@dataclass(slots=True, kw_only=True, eq=False)
class Task:
    """One prompt's samples: a GRPO group of a rollout, or one copy of an evaluation."""

    config: TaskConfig
    index: int
    """Its place in the step, from 0."""
    samples: list[RolloutSample]


@dataclass(slots=True, kw_only=True, eq=False)
class Batch:
    """Tasks of one type, admitted together and run by one Evaluator."""

    task_type: str
    tasks: list[Task] = field(default_factory=list)

    @property
    def samples(self) -> int:
        """How many samples it holds."""
        return sum(len(task.samples) for task in self.tasks)


def distribute(groups: Iterable[list[RolloutSample]], *, default_type: str) -> list[Task]:
    """Make a task of each group, for the evaluator that its samples name."""
    return [
        Task(
            config=TaskConfig(task_type=str(samples[0].metadata.get(TASK_TYPE, default_type))),
            index=index,
            samples=samples,
        )
        for index, samples in enumerate(groups)
    ]
