"""How tasks are put into batches, and in which order an evaluation runs.

A BatchingStrategy is any callable with this signature; everything downstream is uniform.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from executors.task_scheduler.spec import EvaluatorSpec
from executors.task_scheduler.tasks import Batch, Task

T = TypeVar("T")

BatchingStrategy = Callable[[Sequence[Task], Mapping[str, EvaluatorSpec]], list[Batch]]
"""From tasks, and the specs by evaluator id, to batches."""


def fifo_batching(tasks: Sequence[Task], specs: Mapping[str, EvaluatorSpec]) -> list[Batch]:
    """Group tasks by type as they come; seal a batch at its spec's `batch_size`."""
    batches: list[Batch] = []
    open_batch: dict[str, Batch] = {}
    for task in tasks:
        task_type = task.config.task_type
        batch = open_batch.get(task_type)
        if batch is None:
            batch = open_batch[task_type] = Batch(task_type=task_type)
            batches.append(batch)
        batch.tasks.append(task)
        spec = specs.get(task_type)
        size = None if spec is None else spec.batch_size
        if size is not None and len(batch.tasks) >= size:
            del open_batch[task_type]
    return batches


def round_robin(queues: Sequence[Sequence[T]]) -> Iterator[T]:
    """Take one of each queue in turn, A B C A B C, until all are empty."""
    longest = max(map(len, queues), default=0)
    for place in range(longest):
        for queue in queues:
            if place < len(queue):
                yield queue[place]
