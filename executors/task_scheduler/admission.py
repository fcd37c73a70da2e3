"""The assertion before a launch: no batch may wait for what the pool can never give."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executors.task_scheduler.placement import PlacementDeadlock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from executors.task_scheduler.placement import PlacementPool
    from executors.task_scheduler.spec import EvaluatorSpec
    from executors.task_scheduler.tasks import Batch


def assert_admittable(pool: PlacementPool, launches: Sequence[tuple[Batch, EvaluatorSpec]]) -> None:
    """Check the largest demand of every spec against the empty pool. Raises PlacementDeadlock."""
    specs = {spec.evaluator_id: spec for _, spec in launches}
    max_batch_samples = dict.fromkeys(specs, 0)
    for batch, spec in launches:
        known = max_batch_samples[spec.evaluator_id]
        max_batch_samples[spec.evaluator_id] = max(known, batch.samples)
    for evaluator_id, spec in specs.items():
        tokens_needed = min(spec.budget_tokens, max_batch_samples[evaluator_id])
        pool_capacity = pool.max_tokens_for(spec.sample_resource)
        if pool_capacity < tokens_needed:
            raise PlacementDeadlock(
                f"Deadlock: EvaluatorSpec '{evaluator_id}' needs {tokens_needed} placement tokens"
                f" but the pool can only provide {pool_capacity} (each {spec.sample_resource})."
                " Lower its batch_size or its resource budget (concurrency, cpu, memory_gb, gpu),"
                " make one sample smaller, or give --env-cluster-layout more nodes"
            )
