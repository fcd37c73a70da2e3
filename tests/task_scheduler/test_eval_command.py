"""`agentflow eval`: from a file to metrics, and every mistake in one line."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from itertools import combinations
from typing import TYPE_CHECKING, Any

import parts as cli_parts
import pytest
import yaml
from typer.testing import CliRunner

from agentflow.config_loading import Sources, check_as
from agentflow.registry import import_any
from executors.cli.app import app
from executors.task_scheduler.eval_config import EvalConfig
from executors.task_scheduler.eval_session import EvalSession
from executors.watching.run_look import RunLook

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample


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


ACTION_LEVEL = {"enable_action_level_scheduling": True}


@pytest.mark.parametrize(
    "sections",
    [
        pytest.param({}, marks=pytest.mark.slow, id="local"),
        pytest.param({"rollout": ACTION_LEVEL}, marks=pytest.mark.slow, id="action-level"),
        pytest.param(
            {"flow": {"environment": {"name": "docker"}}, "rollout": ACTION_LEVEL},
            marks=pytest.mark.docker,
            id="docker",
        ),
    ],
)
def test_two_bundled_sets_on_three_nodes_agree_with_a_hand_count(
    tmp_path: Path, sections: dict[str, Any]
) -> None:
    """Real environments, real judge: files as listed, accuracy and pass@k by hand."""
    code, out, _ = evaluate(write(tmp_path, **sections))
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
            "eval.budget, eval.run, eval.judge: EvaluatorSpec 'swe': resource",
        ),
        ({"eval": {"run": {}, "judge": {}}}, "eval.run and eval.judge: a sample needs nothing"),
        (
            {"eval": {"datasets": [{"name": "a/b", "source": "bundled"}]}},
            "eval.datasets.0.name: 'a/b' String should match pattern",
        ),
        (
            {"rollout": {**ACTION_LEVEL, "policy": {"name": "fcsf"}}},
            "rollout.policy: policy 'fcsf' is not",
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


def test_a_repository_that_will_not_be_found_is_told_before_anything_runs(tmp_path: Path) -> None:
    """The data set, the task and what is missing."""
    row = {"instance_id": "a-1", "repo": "a/a", "problem_statement": "?", "base_commit": "0"}
    row["FAIL_TO_PASS"] = ["t.py::t"]
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps([row]))
    datasets = [{"name": "mine", "source": str(rows)}]
    code, _, err = evaluate(write(tmp_path, eval={"datasets": datasets}))
    assert code == 2
    assert f"eval.datasets.0 ('mine'): {rows}: a-1: " in err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--env-cluster-layout", '{"n1": [0]}', "--env-num-cpus", "0.5"), "provide 0 (each"),
        (("--env-cluster-layout", '{"n1": [0]}', "--env-memory-gb", "1.5"), "provide 0 (each"),
        (("--evaluator-batch-size", "0"), "eval.batch_size: 0 should be greater than or equal to"),
        (("--evaluator-concurrency", "0"), "eval.concurrency: 0 should be greater than or equal"),
        (("--n-samples-per-eval-prompt", "0"), "eval.n_samples: 0 should be greater than or equal"),
    ],
)
def test_the_texts_flags_are_options(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    """Each reaches its field of the section."""
    code, _, err = evaluate(write(tmp_path), *options)
    assert code == 2
    assert said in err
    assert not (tmp_path / "run").exists()


def test_a_layout_that_cannot_hold_a_batch_is_told_before_anything_runs(tmp_path: Path) -> None:
    """The deadlock's message, with what to change."""
    small = {"cluster_layout": {"n1": {"cpu": 1, "memory_gb": 1}}}
    code, _, err = evaluate(write(tmp_path, eval=small))
    assert code == 2
    assert "Deadlock: EvaluatorSpec 'swe' needs 1 placement tokens but the pool" in err
    assert "Lower its batch_size" in err
    assert not (tmp_path / "run").exists()


async def test_without_a_layout_concurrency_bounds_all_samples(tmp_path: Path) -> None:
    """Nothing gates batches then, so there is one; two sets with one task keep both predictions."""
    run = tmp_path / "run"
    values = cli_parts.make_config(run).model_dump(mode="json", exclude={"tasks"})
    datasets = [{"name": "A", "source": "three"}, {"name": "B.1", "source": "three"}]
    values["eval"] = {"datasets": datasets, "concurrency": 2, "n_samples": 2}
    session = EvalSession(
        check_as(EvalConfig, Sources(values=values)),
        make_engine=cli_parts.make_engine,
        load_tasks=cli_parts.make_tasks,
    )
    await session.run()
    live = [0]
    for line in (run / "events.jsonl").read_bytes().splitlines():
        step = {"env_starting": 1, "env_stopped": -1}.get(json.loads(line)["kind"], 0)
        live.append(live[-1] + step)
    assert (max(live), live[-1]) == (2, 0)
    look = RunLook(run)
    assert (look.standing, look.state.open, look.state.ended.total()) == ("done", 0, 12)
    predictions = sorted((run / "preds").iterdir())  # a local folder
    names = ["A.0.json", "A.1.json", "B.1.0.json", "B.1.1.json"]
    assert [path.name for path in predictions] == names
    assert all(len(json.loads(path.read_bytes())) == 3 for path in predictions)


async def test_an_interrupted_evaluation_says_so_and_leaves_no_environment(tmp_path: Path) -> None:
    """What had ended is kept; cancelling removes what was started."""
    run = cli_parts.make_config(tmp_path / "run", environment={"hang_on": "A/task/2"})
    values = run.model_dump(mode="json", exclude={"tasks"})
    values["eval"] = {"datasets": [{"name": "A", "source": "three"}], "concurrency": 3}
    began = asyncio.Event()

    class Watcher:
        """Waits for two ends."""

        seen = 0

        def started(self, planned: int) -> None:
            """Expect three."""
            assert planned == 3

        def ended(self, sample: RolloutSample) -> None:
            """Count."""
            self.seen += 1
            if self.seen == 2:
                began.set()

    session = EvalSession(
        check_as(EvalConfig, Sources(values=values)),
        watcher=Watcher(),
        make_engine=cli_parts.make_engine,
        load_tasks=cli_parts.make_tasks,
    )
    work = asyncio.create_task(session.run())
    await began.wait()
    live = import_any(f"{cli_parts.__file__}:LIVE")  # the module that the flow loaded by its file
    assert len(live) == 1
    work.cancel()
    await asyncio.wait([work])
    assert work.cancelled()
    assert not live
    run_json = json.loads((tmp_path / "run" / "run.json").read_bytes())
    assert run_json["status"] == "interrupted"
    summary = json.loads((tmp_path / "run" / "summary.json").read_bytes())
    assert summary["episodes"] == 2
    assert summary["tokens"]["unaccounted"] == 0
