"""MultiDataSource: weights, seeds, overrides, and a cursor that can be saved."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.task_scheduler import EvalDataset, MultiDataSource, TrainDataset


def mixed(*, seed: int = 0, b: dict[str, Any] | None = None) -> MultiDataSource:
    """Mix 5 rows of A with 7 of B, three to one."""
    a = TrainDataset(name="A", rows=parts.rows(5), weight=3.0, overrides={"max_turns": 9})
    other = TrainDataset(name="B", rows=parts.rows(7), **(b or {}))
    return MultiDataSource([a, other], n_samples_per_prompt=2, runner=AsyncioRunner(seed=seed))


def uids(source: MultiDataSource, count: int) -> list[str]:
    """Fetch and name prompts."""
    return [group[0].episode.uid for group in source.get_samples(count)]


def test_a_group_is_the_samples_of_one_prompt() -> None:
    """Same uid, numbered replicas, the data set's own values on each."""
    for group in mixed().get_samples(5):
        assert [sample.episode.replica_index for sample in group] == [0, 1]
        assert len({sample.episode.uid for sample in group}) == 1
        expected = {"max_turns": 9} if group[0].metadata["_dataset_name"] == "A" else {}
        assert all(sample.metadata["_dataset_cfg"] == expected for sample in group)


def test_weights_are_shares() -> None:
    """Three to one, within chance."""
    names = Counter(uid[0] for uid in uids(mixed(), 2000))
    assert 0.70 < names["A"] / 2000 < 0.80


def test_each_set_is_read_through_before_it_repeats_and_then_in_another_order() -> None:
    """An epoch has every prompt once; the next one's prompts are episodes of their own."""
    drawn = [uid for uid in uids(mixed(), 60) if uid.startswith("A")]
    first, second = drawn[:5], drawn[5:10]
    assert sorted(first) == [f"A/task-{i}" for i in range(5)]
    assert sorted(second) == [f"A/task-{i}@1" for i in range(5)]
    assert len(set(drawn)) == len(drawn)


def test_seeds_decide_the_order() -> None:
    """The same seeds, the same prompts; another seed of one set reorders that set alone."""
    assert uids(mixed(), 30) == uids(mixed(), 30)
    assert uids(mixed(), 30) != uids(mixed(seed=1), 30)
    plain, reseeded = uids(mixed(), 30), uids(mixed(b={"seed": 5}), 30)
    assert [u for u in plain if u[0] == "A"] == [u for u in reseeded if u[0] == "A"]
    assert [u[0] for u in plain] == [u[0] for u in reseeded]
    assert plain != reseeded


@pytest.mark.parametrize("at", [0, 1, 4, 5, 17])
def test_a_saved_cursor_goes_on_without_a_repeated_or_skipped_prompt(at: int) -> None:
    """Through JSON, into a new process's source."""
    whole = uids(mixed(), 40)
    source = mixed()
    begun = uids(source, at)
    state = json.loads(json.dumps(source.state_dict()))
    other = mixed()
    uids(other, 3)  # wherever it stood before
    other.load_state_dict(state)
    assert begun + uids(other, 40 - at) == whole


def test_a_cursor_of_other_data_sets_is_refused() -> None:
    """A position means nothing there."""
    with pytest.raises(ConfigError, match="resume with the same ones"):
        mixed().load_state_dict({**mixed().state_dict(), "rows": {"A": 5}})


def test_bad_data_sets_are_named() -> None:
    """Empty, unknown override, no weight, twice the same name."""
    with pytest.raises(ConfigError, match="'x' has no rows"):
        EvalDataset(name="x", rows=[])
    with pytest.raises(
        ConfigError, match=r"unknown override 'max_turn'; did you mean 'max_turns'\?"
    ):
        EvalDataset(name="x", rows=parts.rows(1), overrides={"max_turn": 1})
    for weight in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=f"weight is {weight}"):
            mixed(b={"weight": weight})
    with pytest.raises(ConfigError, match="'x/task-0' is there 2 times"):
        EvalDataset(name="x", rows=parts.rows(1) * 2)
    one = TrainDataset(name="x", rows=parts.rows(1))
    with pytest.raises(ConfigError, match="each with its own name"):
        MultiDataSource([one, one], n_samples_per_prompt=1, runner=AsyncioRunner())
    with pytest.raises(ConfigError, match="n_samples_per_prompt is 0"):
        MultiDataSource([one], n_samples_per_prompt=0, runner=AsyncioRunner())
