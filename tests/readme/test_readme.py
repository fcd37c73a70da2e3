"""README's examples do what they say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_example(number: int, folder: Path) -> list[str]:
    """Run a Python block of README as it stands, from nothing but the package."""
    text = (ROOT / "README.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_prints_what_it_resolved(tmp_path: Path) -> None:
    """The whole run of README."""
    assert run_example(0, tmp_path)[-1:] == ["resolved 2 of 2"]
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


@pytest.mark.slow
def test_the_trainers_example_trains(tmp_path: Path) -> None:
    """The trainer's loop of README: two steps of two groups of two."""
    assert run_example(1, tmp_path) == ["[1.0, 1.0, 1.0, 1.0]"] * 2


@pytest.mark.slow
def test_the_schedulers_example_fades_the_teacher_out(tmp_path: Path) -> None:
    """All turns, some, none; and the files that the section names."""
    first, second, third = run_example(2, tmp_path)
    assert first == "8 of 8 [1.0, 1.0, 1.0, 1.0]"
    assert 0 < int(second.split()[0]) < int(second.split()[2])
    assert third.startswith("0 of ")
    assert third.endswith("[0.0, 0.0, 0.0, 0.0]")
    saved = {path.name for path in (tmp_path / "runs" / "dagger").glob("*.json")}
    assert saved == {
        f"trajectory_sft_samples{step}.json" for step in ("", "_iter_000", "_iter_001", "_iter_002")
    }


@pytest.mark.slow
def test_the_example_of_an_evaluation_leaves_what_readme_says(tmp_path: Path) -> None:
    """Two data sets, four copies, three nodes: every file and metric that the section names."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text[text.index("## Evaluations") : text.index("## The life of an episode")]
    (example,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "eval.yaml").write_text(example, "utf-8")
    command = [sys.executable, "-m", "executors.cli", "eval", "--config", "eval.yaml"]
    environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, timeout=120)
    run = tmp_path / "runs" / "eval"
    metrics = json.loads((run / "metrics.json").read_bytes())
    names = ("samples", "masked", "accuracy", *(f"pass@{k}" for k in range(1, 5)))
    assert set(metrics) == {
        f"eval/{name}/{metric}" for name in ("easy", "short") for metric in names
    }
    assert len((run / "eval_details" / "0.jsonl").read_bytes().splitlines()) == 8
    assert (run / "eval_details" / "0.placements.jsonl").exists()
    assert (run / "eval_details" / "0.summary.json").exists()
    assert {path.name for path in (run / "preds").iterdir()} == {
        f"{name}.{replica}.json" for name in ("easy", "short") for replica in range(4)
    }


@pytest.mark.slow
def test_the_simulations_of_readme_run(tmp_path: Path) -> None:
    """Its four commands, in order, as they stand."""
    text = (ROOT / "README.md").read_text("utf-8")
    section = text[text.index("## In virtual time") : text.index("## Evaluations")]
    printed = []
    for line in re.findall(r"^\$ agentflow (.*)$", section, re.MULTILINE):
        command = [sys.executable, "-m", "executors.cli", *line.split()]
        environ = {"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"}
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            check=True,
            timeout=300,
            capture_output=True,
            text=True,
        )
        printed.append(done.stdout)
    for text, told in zip(printed, ("rho ", "kept in", "recorded ", " 0 violations"), strict=True):
        assert told in text


def test_every_folder_that_readme_names_exists() -> None:
    """The table of folders speaks of what is there."""
    text = (ROOT / "README.md").read_text("utf-8")
    table = text[text.index("## Where things are") : text.index("## Bring your own")]
    for name in re.findall(r"^\| `([a-z_/]+)", table, re.MULTILINE):
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists(), name


def test_the_table_of_knobs_is_the_codes() -> None:
    """README's table of flags and variables is what the code prints."""
    printed = subprocess.run(
        [sys.executable, "-m", "executors.task_scheduler.knobs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed in (ROOT / "README.md").read_text("utf-8")
