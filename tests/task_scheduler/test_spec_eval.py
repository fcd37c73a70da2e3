"""Section 5: what evaluations and rollouts write, and what they measure."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.types import TerminationClass
from executors.runs.files import LineFile, OutputError
from executors.task_scheduler import (
    EvalDataset,
    NodeResource,
    PlacementPool,
    Resource,
    SchedulerArgs,
)
from executors.task_scheduler.eval_metrics import eval_metrics, pass_at_k
from executors.task_scheduler.eval_outputs import EvalDetails

if TYPE_CHECKING:
    from agentflow.types import RolloutSample


def lines(path: Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def names(folder: Path) -> list[str]:
    """List a folder."""
    return sorted(path.name for path in folder.iterdir())


def gated(handler: parts.Handler, **scheduler: Any) -> Any:
    """Make a scheduler on three nodes, one GPU each, half a GPU a sample."""
    spec = parts.spec(
        handler,
        run_resource=Resource(gpu=0.5),
        resource=Resource(gpu=3, concurrency=4),
    )
    pool = PlacementPool(NodeResource(node=f"10.0.0.{i}", gpus=(0,)) for i in range(3))
    return parts.scheduler(spec, pool=pool, **scheduler)


async def test_eval_details_are_three_files(tmp_path: Path) -> None:
    """A line a sample, a line a turn with node IP and GPU, and the failure classes."""
    handler = parts.Handler(reward=lambda s: float(s.episode.replica_index == 0), turns=2)
    args = SchedulerArgs(save=str(tmp_path), save_eval_details=True, n_samples_per_eval_prompt=2)
    sets = [EvalDataset(name="A", rows=parts.rows(2))]
    await gated(handler, args=args, eval_datasets=sets).execute_eval(7)
    folder = tmp_path / "eval_details"
    assert sorted(path.name for path in folder.iterdir()) == [  # a local folder
        "7.jsonl",
        "7.placements.jsonl",
        "7.summary.json",
    ]
    rows = lines(folder / "7.jsonl")
    assert sorted((row["uid"], row["replica_index"], row["reward"]["score"]) for row in rows) == [
        ("A/task-0", 0, 1.0),
        ("A/task-0", 1, 0.0),
        ("A/task-1", 0, 1.0),
        ("A/task-1", 1, 0.0),
    ]
    assert {row["class"] for row in rows} == {"resolved", "wrong_answer"}
    turns = lines(folder / "7.placements.jsonl")
    assert len(turns) == 8
    assert {turn["turn"] for turn in turns} == {0, 1}
    assert {turn["node_ip"] for turn in turns} <= {"10.0.0.0", "10.0.0.1", "10.0.0.2"}
    assert all(turn["gpus"] == [0] for turn in turns)
    summary = json.loads((folder / "7.summary.json").read_text())
    assert summary["samples"] == 4
    assert summary["by_class"]["resolved"] == summary["by_class"]["wrong_answer"] == 2
    assert set(summary["by_class"]) == set(map(str, TerminationClass))


def test_a_turn_that_the_disk_refuses_is_told_when_its_task_ends(tmp_path: Path) -> None:
    """Turns are heard of in a callback, where an error would reach nobody."""
    written = EvalDetails(tmp_path, "0")
    written._turns.close()
    written._turns = LineFile(Path("/dev/full"))
    written.turn(parts.sample(), None, turn=0, source="student")
    with pytest.raises(OutputError, match="No space left"):
        written.task(parts.task())
    written.close()


async def test_rollout_steps_write_the_same_as_train_id(tmp_path: Path) -> None:
    """eval_details/train_{id}.summary.json."""
    args = SchedulerArgs(save=str(tmp_path), save_eval_details=True, rollout_batch_size=2)
    it = gated(parts.Handler(), args=args, source=parts.source(AsyncioRunner(), n=2))
    await it.execute_rollout(3)
    folder = tmp_path / "eval_details"
    assert json.loads((folder / "train_3.summary.json").read_text())["samples"] == 4
    assert len(lines(folder / "train_3.jsonl")) == 4


async def test_without_the_flag_nothing_is_written(tmp_path: Path) -> None:
    """And the flag needs a folder."""
    sets = [EvalDataset(name="A", rows=parts.rows(1))]
    args = SchedulerArgs(save=str(tmp_path))
    await parts.scheduler(args=args, eval_datasets=sets).execute_eval()
    assert names(tmp_path) == []
    with pytest.raises(ConfigError, match="needs --save"):
        SchedulerArgs(save_eval_details=True)


async def test_metrics_of_two_sets_agree_with_a_hand_count() -> None:
    """Accuracy, and pass@k where there is more than one copy."""
    right = {("A/task-0", 0), ("A/task-0", 1), ("A/task-1", 3), ("B/task-0", 0)}

    def reward(sample: RolloutSample) -> float:
        return float((sample.episode.uid, sample.episode.replica_index) in right)

    sets = [
        EvalDataset(name="A", rows=parts.rows(2), n_samples=4),
        EvalDataset(name="B", rows=parts.rows(1)),
    ]
    it = parts.scheduler(parts.spec(parts.Handler(reward=reward)), eval_datasets=sets)
    metrics = (await it.execute_eval()).metrics
    assert metrics["eval/A/accuracy"] == 3 / 8
    assert metrics["eval/A/pass@1"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert metrics["eval/A/pass@2"] == pytest.approx((5 / 6 + 3 / 6) / 2)
    assert metrics["eval/A/pass@3"] == pytest.approx((1 + 3 / 4) / 2)
    assert metrics["eval/A/pass@4"] == 1.0
    assert metrics["eval/B/accuracy"] == 1.0
    assert not any(name.startswith("eval/B/pass@") for name in metrics)


@pytest.mark.parametrize("n", [1, 2, 5, 6])
def test_pass_at_k_is_unbiased(n: int) -> None:
    """It is the share of all k-subsets that hold a right one, for every k up to n."""
    for correct in range(n + 1):
        copies = [True] * correct + [False] * (n - correct)
        for k in range(1, n + 1):
            subsets = list(itertools.combinations(copies, k))
            assert pass_at_k(n, correct, k) == pytest.approx(sum(map(any, subsets)) / len(subsets))


def test_pass_at_more_than_n_does_not_exist() -> None:
    """No estimate can be made."""
    with pytest.raises(ValueError, match="pass@3 of 1 right among 2"):
        pass_at_k(2, 1, 3)


def test_masked_samples_are_neither_right_nor_wrong() -> None:
    """They are counted apart; a prompt that lost copies has no say in the larger k."""
    samples = [parts.sample("p", i) for i in range(3)] + [parts.sample("q", i) for i in range(3)]
    for sample in samples:
        sample.rewards = float(sample.episode.uid == "q")
    samples[0].remove_sample = True
    assert eval_metrics("A", samples) == {
        "eval/A/samples": 5.0,
        "eval/A/masked": 1.0,
        "eval/A/accuracy": 3 / 5,
        "eval/A/pass@1": 0.5,
        "eval/A/pass@2": 0.5,
        "eval/A/pass@3": 1.0,
    }


def test_a_set_without_a_single_judged_sample_has_no_accuracy() -> None:
    """Zero would be a lie."""
    sample = parts.sample("p")
    sample.remove_sample = True
    assert eval_metrics("A", [sample]) == {"eval/A/samples": 0.0, "eval/A/masked": 1.0}
