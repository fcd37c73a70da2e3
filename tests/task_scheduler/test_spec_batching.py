"""Section 2: batching strategies, specs, and the two cascades."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from executors.task_scheduler import (
    Batch,
    EvalDataset,
    SchedulerArgs,
    StoppingCriteria,
    fifo_batching,
)
from executors.task_scheduler.batching import round_robin
from executors.task_scheduler.stopping import DATASET_CFG

if TYPE_CHECKING:
    from collections.abc import Sequence


def types_of(batches: Sequence[Batch]) -> list[tuple[str, int]]:
    """Tell type and size of each batch."""
    return [(batch.task_type, len(batch.tasks)) for batch in batches]


def test_fifo_groups_by_task_type_in_encounter_order_and_seals_at_batch_size() -> None:
    """A sealed batch is followed by a new one; types keep the order of their first task."""
    specs = {"a": parts.spec(evaluator_id="a", batch_size=2), "b": parts.spec(evaluator_id="b")}
    tasks = [parts.task(kind, index=i) for i, kind in enumerate("abaaba")]
    batches = fifo_batching(tasks, specs)
    assert types_of(batches) == [("a", 2), ("b", 1), ("a", 2), ("b", 1)]
    assert [t.index for b in batches for t in b.tasks] == [0, 2, 1, 3, 5, 4]


def test_a_type_without_spec_or_batch_size_makes_one_batch() -> None:
    """Nothing seals it."""
    specs = {"a": parts.spec(evaluator_id="a", batch_size=None)}
    tasks = [parts.task(kind) for kind in "axaxax"]
    assert types_of(fifo_batching(tasks, specs)) == [("a", 3), ("x", 3)]


def test_round_robin_is_abcabc_not_aabbcc() -> None:
    """Queues are taken from in turn; shorter ones drop out."""
    assert "".join(round_robin(["AAA", "B", "CC"])) == "ABCACA"


async def test_a_batching_strategy_is_a_plain_callable() -> None:
    """The scheduler runs whatever batches it gives."""
    seen: list[int] = []

    def one_by_one(tasks: Any, specs: Any) -> list[Batch]:
        seen.append(len(tasks))
        return [Batch(task_type=t.config.task_type, tasks=[t]) for t in reversed(tasks)]

    handler = parts.Handler()
    it = parts.scheduler(parts.spec(handler), batching_strategy=one_by_one)
    await it.run_all([parts.task(index=0), parts.task(index=1)])
    assert seen == [2]
    assert handler.order == ["swe-1#0", "swe-0#0"]


async def test_eval_interleaves_data_sets_and_copies_and_splits_them_apart_afterwards() -> None:
    """Every (prompt x copy) of all sets goes through one `run_all`, A B A B."""
    handler = parts.Handler()
    sets = [
        EvalDataset(name="A", rows=parts.rows(2), n_samples=2),
        EvalDataset(name="B", rows=parts.rows(2)),
    ]
    it = parts.scheduler(parts.spec(handler), eval_datasets=sets)
    result = await it.execute_eval()
    assert handler.order == [
        "A/task-0#0",
        "B/task-0#0",
        "A/task-1#0",
        "B/task-1#0",
        "A/task-0#1",
        "A/task-1#1",
    ]
    assert {name: len(samples) for name, samples in result.samples.items()} == {"A": 4, "B": 2}
    assert all(s.metadata["_eval_dataset_name"] == "B" for s in result.samples["B"])


def test_resolve_spec_wants_the_exact_id(caplog: pytest.LogCaptureFixture) -> None:
    """Another type warns and falls back to the first spec."""
    it = parts.scheduler(parts.spec(evaluator_id="one"), parts.spec(evaluator_id="two"))
    assert it._resolve_spec(Batch(task_type="two")).evaluator_id == "two"
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert it._resolve_spec(Batch(task_type="three")).evaluator_id == "one"
    assert "'three' (known: one, two)" in caplog.text


def test_resolve_stopping_is_a_three_level_cascade() -> None:
    """Data set over command line over spec, each value for itself."""
    defaults = StoppingCriteria(max_turns=100, max_context_len=65536, timeout_s=60.0)
    it = parts.scheduler(args=SchedulerArgs(rollout_max_turns=50, rollout_timeout_s=30.0))
    spec = parts.spec(default_stopping=defaults)
    sample = parts.sample(**{DATASET_CFG: {"max_turns": 7}})
    assert it._resolve_stopping(spec, sample) == StoppingCriteria(
        max_turns=7, max_context_len=65536, timeout_s=30.0
    )
    assert it._resolve_stopping(spec, parts.sample()).max_turns == 50


def test_stopping_of_an_evaluation_takes_its_own_flags_first() -> None:
    """`--eval-max-turns` wins over `--rollout-max-turns` there, and only there."""
    it = parts.scheduler(args=SchedulerArgs(rollout_max_turns=50, eval_max_turns=9))
    assert it._resolve_stopping(parts.spec(), parts.sample(), evaluating=True).max_turns == 9
    assert it._resolve_stopping(parts.spec(), parts.sample()).max_turns == 50


def test_build_sampling_params_is_a_three_level_cascade() -> None:
    """Data set over `--eval-*` over `--rollout-*`."""
    args = SchedulerArgs(rollout_temperature=0.9, rollout_top_p=0.8, eval_temperature=0.0)
    it = parts.scheduler(args=args)
    sample = parts.sample(**{DATASET_CFG: {"max_new_tokens": 11}})
    training = it._build_sampling_params(sample)
    assert (training.temperature, training.top_p, training.max_new_tokens) == (0.9, 0.8, 11)
    evaluation = it._build_sampling_params(sample, evaluating=True)
    assert (evaluation.temperature, evaluation.top_p) == (0.0, 0.8)


async def test_overrides_ride_in_on_the_samples_of_the_data_source() -> None:
    """What a data set says reaches the handler."""
    handler = parts.Handler()
    dataset = EvalDataset(
        name="A", rows=parts.rows(1), overrides={"max_turns": 3, "temperature": 0.1}
    )
    it = parts.scheduler(parts.spec(handler), eval_datasets=[dataset])
    result = await it.execute_eval()
    assert handler.contexts["A/task-0#0"].stopping.max_turns == 3
    (sample,) = result.samples["A"]
    assert sample.sampling is not None
    assert sample.sampling.temperature == 0.1


def test_specs_need_different_ids() -> None:
    """Two of one id, or none, are refused."""
    with pytest.raises(ConfigError, match="each with its own id"):
        parts.scheduler(parts.spec(), parts.spec())


async def test_tasks_are_distributed_to_the_evaluator_that_their_data_set_names() -> None:
    """Without a name they go to the first."""
    first, second = parts.Handler(), parts.Handler()
    sets = [
        EvalDataset(name="A", rows=parts.rows(1), task_type="two"),
        EvalDataset(name="B", rows=parts.rows(1)),
    ]
    specs = parts.spec(first, "one"), parts.spec(second, "two")
    await parts.scheduler(*specs, eval_datasets=sets).execute_eval()
    assert (first.order, second.order) == (["B/task-0#0"], ["A/task-0#0"])
