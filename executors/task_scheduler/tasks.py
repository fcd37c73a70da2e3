"""Task and Batch: what the scheduler distributes, and in which portions it is admitted."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.types import RolloutSample


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
