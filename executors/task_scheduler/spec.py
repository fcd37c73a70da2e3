"""EvaluatorSpec: binds a handler to the resources that its samples need."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from executors.task_scheduler.resource import Resource, check_sample
from executors.task_scheduler.stopping import StoppingCriteria

if TYPE_CHECKING:
    from executors.task_scheduler.agents import BaseAgent


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatorSpec:
    """How the tasks of one type are evaluated."""

    evaluator_id: str
    """The task type it is for."""
    handler: BaseAgent
    resource: Resource = field(default_factory=Resource)
    """Budget of one evaluator; its concurrency is the ceiling of samples at a time."""
    run_resource: Resource = field(default_factory=Resource)
    """Of one sample while it runs."""
    eval_resource: Resource = field(default_factory=Resource)
    """Of one sample while it is judged."""
    batch_size: int | None = 1
    """Tasks of one batch; None puts all of a step into one."""
    default_stopping: StoppingCriteria = field(default_factory=StoppingCriteria)

    def __post_init__(self) -> None:
        """Raise ConfigError for a spec whose budget holds not even one sample."""
        name = f"EvaluatorSpec {self.evaluator_id!r}"
        check_sample(self.run_resource, name=f"{name}: run_resource")
        check_sample(self.eval_resource, name=f"{name}: eval_resource")
        if self.batch_size is not None and self.batch_size < 1:
            raise ConfigError(f"{name}: batch_size is {self.batch_size}; it must be at least 1")
        if self.budget_tokens < 1:
            raise ConfigError(
                f"{name}: resource {self.resource} has no room for one sample, which needs"
                f" {self.sample_resource}; raise the budget or lower the need of one sample"
            )

    @property
    def sample_resource(self) -> Resource:
        """The peak that one sample holds: running and judging never overlap."""
        return self.run_resource.peak(self.eval_resource)

    @property
    def budget_tokens(self) -> int:
        """Samples that the budget holds at a time."""
        return self.resource.tokens(self.sample_resource)
