"""`agentflow eval`: from a file to metrics, and every mistake in one line."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from executors.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, **sections: Any) -> Path:
    """Write a configuration: two bundled data sets, 4 copies, three nodes."""
    node = {"cpu": 1, "memory_gb": 4}
    evaluation = {
        "n_samples": 4,
        "concurrency": 2,
        "budget": {"cpu": 4, "memory_gb": 8},
        "run": {"cpu": 1, "memory_gb": 1},
        "judge": {"cpu": 1, "memory_gb": 2},
        "cluster_layout": {f"10.0.0.{i}": node for i in range(1, 4)},
        "datasets": [
            {"name": "easy", "source": "bundled", "only": ["pager-off-by-one"]},
            {"name": "short", "source": "bundled", "only": ["notes-encoding"], "max_turns": 1},
        ],
        **sections.pop("eval", {}),
    }
    config = {
        "engine": {"url": "scripted:noisy:7"},
        "run": {"out": str(folder / "run")},
        "eval": evaluation,
        **sections,
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def evaluate(path: Path, *options: str) -> tuple[int, str, str]:
    """Run the command in this process."""
    result = CliRunner().invoke(app, ["eval", "--config", str(path), *options])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def by_hand(rows: list[dict[str, Any]], k: int) -> float:
    """Count pass@k over all k-subsets of each prompt's copies."""
    prompts: dict[str, list[bool]] = defaultdict(list)
    for row in rows:
        prompts[row["uid"]].append(row["reward"]["score"] > 0)
    shares = [[any(s) for s in combinations(copies, k)] for copies in prompts.values()]
    return sum(sum(share) / len(share) for share in shares) / len(shares)


def test_two_bundled_sets_on_three_nodes_agree_with_a_hand_count(tmp_path: Path) -> None:
    """Real environments, real judge: files as listed, accuracy and pass@k by hand."""
    code, out, _ = evaluate(write(tmp_path))
    assert code == 0
    run = tmp_path / "run"
    rows = [json.loads(line) for line in (run / "eval_details/0.jsonl").read_text().splitlines()]
    metrics = json.loads((run / "metrics.json").read_text())
    for name in ("easy", "short"):
        of_set = [row for row in rows if row["dataset"] == name]
        assert len(of_set) == 4
        right = sum(row["reward"]["score"] > 0 for row in of_set)
        assert metrics[f"eval/{name}/accuracy"] == right / 4
        for k in range(1, 5):
            assert metrics[f"eval/{name}/pass@{k}"] == pytest.approx(by_hand(of_set, k))
    assert 0 < metrics["eval/easy/accuracy"] <= 1
    assert all(row["turns"] <= 1 for row in rows if row["dataset"] == "short")
    turns = (run / "eval_details/0.placements.jsonl").read_text().splitlines()
    assert {json.loads(turn)["node_ip"] for turn in turns} == {f"10.0.0.{i}" for i in (1, 2, 3)}
    summary = json.loads((run / "eval_details/0.summary.json").read_text())
    assert summary["samples"] == sum(summary["by_class"].values()) == 8
    assert json.loads((run / "run.json").read_text())["status"] == "done"
    assert f"eval/easy/accuracy {metrics['eval/easy/accuracy']:g}" in out


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"eval": {"datasets": []}}, "eval.datasets: is missing"),
        ({"eval": {"dataset": []}}, "eval.dataset: unknown key; did you mean 'datasets'?"),
        (
            {"eval": {"datasets": [{"name": "a", "source": "bundled", "only": ["x"]}]}},
            "eval.datasets.0 ('a'): tasks.only: 'x' is not in 'bundled'",
        ),
        (
            {"eval": {"datasets": [{"name": "a", "source": "bundled"}] * 2}},
            "two are named 'a'",
        ),
        (
            {"eval": {"cluster_layout": {"n1": {"cpus": 1}}}},
            "cluster layout: node 'n1': unknown key 'cpus'",
        ),
        (
            {"eval": {"run": {"cpu": 99}}},
            "EvaluatorSpec 'swe': resource",
        ),
        ({"engine": {"url": "http://127.0.0.1:1"}}, "engine.url: 'http://127.0.0.1:1' cannot be"),
    ],
)
def test_bad_input_is_one_line_and_touches_nothing(
    tmp_path: Path, sections: dict[str, Any], complaint: str
) -> None:
    """Exit code 2, the place and the value named, no run directory."""
    code, _, err = evaluate(write(tmp_path, **sections))
    assert code == 2
    assert complaint in err
    assert not (tmp_path / "run").exists()


def test_a_layout_that_cannot_hold_a_batch_is_told_before_anything_runs(tmp_path: Path) -> None:
    """The deadlock's message, with what to change."""
    small = {"cluster_layout": {"n1": {"cpu": 1, "memory_gb": 1}}}
    code, _, err = evaluate(write(tmp_path, eval=small))
    assert code == 2
    assert "Deadlock: EvaluatorSpec 'swe' needs 1 placement tokens but the pool" in err
    assert "Lower its batch_size" in err
