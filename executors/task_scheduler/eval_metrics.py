"""What an evaluation reports: accuracy, and unbiased pass@k.

A sample that the infrastructure ended says nothing about the policy: it is counted apart, and
neither right nor wrong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from executors.task_scheduler.data_source import EVAL_DATASET

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import RolloutSample


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """What an evaluation came to."""

    metrics: dict[str, float]
    """`eval/{name}/accuracy`, `eval/{name}/pass@k`, counts."""
    samples: dict[str, list[RolloutSample]]
    """Ended samples by data set."""


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Chance that at least one of `k` of the `n` copies is right: 1 - C(n-c, k) / C(n, k)."""
    if not (0 <= correct <= n and 1 <= k <= n):
        raise ValueError(f"pass@{k} of {correct} right among {n} does not exist")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def eval_metrics(name: str, samples: Sequence[RolloutSample]) -> dict[str, float]:
    """Give `eval/{name}/…` of one data set's ended samples.

    pass@k is the mean over the prompts that have at least k copies which count; it is there where
    there was more than one copy.
    """
    counted = [sample for sample in samples if not sample.remove_sample]
    metrics = {
        f"eval/{name}/samples": float(len(counted)),
        f"eval/{name}/masked": float(len(samples) - len(counted)),
    }
    if counted:
        right = sum(sample.rewards > 0 for sample in counted)
        metrics[f"eval/{name}/accuracy"] = right / len(counted)
    prompts: dict[str, list[bool]] = defaultdict(list)
    for sample in counted:
        prompts[sample.episode.uid].append(sample.rewards > 0)
    copies = max((sample.episode.replica_index + 1 for sample in samples), default=0)
    for k in range(1, copies + 1) if copies > 1 else ():
        values = [pass_at_k(len(p), sum(p), k) for p in prompts.values() if len(p) >= k]
        if values:
            metrics[f"eval/{name}/pass@{k}"] = sum(values) / len(values)
    return metrics


def eval_result(names: Sequence[str], samples: Sequence[RolloutSample]) -> EvalResult:
    """Split ended samples by data set again, and measure each set."""
    by_set: dict[str, list[RolloutSample]] = {name: [] for name in names}
    for sample in samples:
        by_set[sample.metadata[EVAL_DATASET]].append(sample)
    metrics: dict[str, float] = {}
    for name, of_set in by_set.items():
        metrics |= eval_metrics(name, of_set)
    return EvalResult(metrics=metrics, samples=by_set)
