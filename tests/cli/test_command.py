"""The command as a user meets it: output, exit codes, signals."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentflow.engine.recorded_tokens import tokens_name
from agentflow.types import EpisodeId
from executors.cli.app import app

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


def foreground(out: Path, **sections: Any) -> subprocess.Popen[str]:
    """Start a run of the plugged-in parts in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(HERE / "foreground.py"), str(out), json.dumps(sections)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )


def agentflow(*args: str) -> tuple[int, str, str]:
    """Run the command in this process."""
    result = CliRunner().invoke(app, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def status(out: Path) -> str:
    """Read how run.json says that a run stands."""
    return str(json.loads((out / "run.json").read_text())["status"])


def test_a_run_prints_plain_lines_and_a_table_and_exits_0(tmp_path: Path) -> None:
    """Without a terminal there is no bar and no colour."""
    process = foreground(tmp_path / "run")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "[3/3]" in out
    assert "resolved 3 of 3 episodes (3 planned): resolved 3" in out
    assert "tokens   received 18 = delivered 18" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.slow
def test_a_signal_ends_a_run_cleanly_with_130(tmp_path: Path, number: signal.Signals) -> None:
    """What had ended is kept, and the table is printed."""
    process = foreground(tmp_path / "run", environment={"hang": True})
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "resolved 0 of 0 episodes (3 planned): none ended" in out
    assert "ending; Ctrl-C again leaves at once" in err
    assert f"kept in  {tmp_path / 'run'}" in out
    assert "Traceback" not in err
    assert "--resume" not in out
    assert status(tmp_path / "run") == "interrupted"
    assert json.loads((tmp_path / "run" / "run.json").read_text())["error"] is None


@pytest.mark.slow
def test_an_interrupted_run_with_a_journal_says_how_to_go_on(tmp_path: Path) -> None:
    """By the command, for a shell."""
    run = tmp_path / "my run"
    process = foreground(run, environment={"hang": True}, rollout={"journal": True})
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out.splitlines()[-1] == f"go on by agentflow run --resume '{run}'"


@pytest.mark.slow
def test_a_second_signal_leaves_at_once(tmp_path: Path) -> None:
    """Even while an environment refuses to stop; run.json still tells the truth."""
    process = foreground(tmp_path / "run", environment={"hang": True, "hang_stop": True})
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "hanging\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.readline().startswith("ending")
    while process.poll() is None:  # until one is late enough not to be an echo of the first
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.1)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert status(tmp_path / "run") == "interrupted"


@pytest.mark.slow
def test_a_storm_of_signals_ends_with_130_as_well(tmp_path: Path) -> None:
    """No signal meets the default action, not while the process prints and exits either."""
    process = foreground(tmp_path / "run", environment={"hang": True})
    assert process.stdout is not None
    assert process.stdout.readline() == "hanging\n"
    while process.poll() is None:
        process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=0.001)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert status(tmp_path / "run") == "interrupted"


def test_samples_that_ended_survive_kill_9(tmp_path: Path) -> None:
    """Every line of samples.jsonl is whole and its token file is there."""
    out = tmp_path / "run"
    process = foreground(out, environment={"hang_on": "task/2"}, run={"n": 1})
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(3)]
    assert sorted(line.split()[0] for line in seen) == ["[1/3]", "[2/3]", "hanging"]
    process.kill()
    process.communicate(timeout=60)
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert {row["uid"] for row in rows} == {"task/0", "task/1"}
    assert all((out / row["tokens"]).exists() for row in rows)
    assert status(out) == "running"


@pytest.mark.slow
def test_a_failed_run_exits_1_with_one_line(tmp_path: Path) -> None:
    """A bug in a plug-in is told without a traceback, which is in the log."""
    process = foreground(tmp_path / "run", agent={"bug": "task/0"})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert err.endswith(
        "error: ZeroDivisionError: a bug in the agent (the traceback is in logs/agentflow.log)\n"
    )
    assert "Traceback" not in err
    assert "resolved" in out


def test_bad_input_exits_2_with_every_problem_on_a_line(tmp_path: Path) -> None:
    """File, line, field, value and a suggestion; no traceback."""
    file = tmp_path / "run.yaml"
    file.write_text("run:\n  sead: 1\nflow:\n  name: swee\n")
    code, out, err = agentflow("run", "--config", str(file), "--n", "0")
    assert (code, out) == (2, "")
    assert f"error: {file}:2: run.sead: unknown key; did you mean 'seed'?" in err
    assert f"error: {file}:4: flow.name: flow 'swee' is not known; did you mean 'swe'?" in err
    assert "error: --n: run.n: 0 should be greater than or equal to 1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["run", "--config", "none.yaml"], "none.yaml: cannot be read: No such file"),
        (["run", "--set", "n"], "--set n: wanted is dotted.field=value"),
        (["run", "--n", "many"], "Invalid value for '--n'"),
        (["run", "--nn", "3"], "No such option: --nn"),
        (["walk"], "No such command 'walk'"),
    ],
)
def test_wrong_arguments_exit_2(args: list[str], said: str) -> None:
    """Before anything is loaded or written."""
    code, _, err = agentflow(*args)
    assert code == 2
    assert said in err


def test_help_documents_the_exit_codes() -> None:
    """They are part of the interface."""
    for args in (["--help"], ["run", "--help"], ["tasks", "--help"]):
        code, out, _ = agentflow(*args)
        assert code == 0
        assert "130 interrupted" in " ".join(out.split())


def test_versions_are_shown() -> None:
    """The ones that decide a run's outcome."""
    code, out, _ = agentflow("--version")
    assert code == 0
    assert out.startswith("python 3.")
    assert "numpy " in out


def test_the_reason_of_failed_episodes_is_printed_once(tmp_path: Path) -> None:
    """Three episodes that fail for one reason have one line that says it."""
    out, _ = foreground(tmp_path / "run", environment={"fail": True}).communicate(timeout=60)
    assert out.count("env_start_failed: no room") == 1
    assert out.index("[1/3]") < out.index("env_start_failed: no room") < out.index("[2/3]")


def task_file(tmp_path: Path, **row: Any) -> Path:
    """Write a file of one SWE-bench row."""
    file = tmp_path / "rows.jsonl"
    fields = {"instance_id": "o__r-1", "repo": "o/r", "base_commit": "abc", "patch": "p"}
    tests = {"problem_statement": "fix it", "FAIL_TO_PASS": ["t.py::t"]}
    file.write_text(json.dumps(fields | tests | row) + "\n")
    return file


@pytest.mark.parametrize("how", ["run", "run --dry-run"])
@pytest.mark.parametrize(
    ("row", "args", "said"),
    [
        ({}, (), "environment 'local' has none: give the row a `source`"),
        ({}, (), "or take --env docker with an `image`"),
        ({"source": {"type": "dir", "path": "gone"}}, (), "gone': no such folder"),
        ({"source": {"type": "git", "url": "gone.git"}}, (), "source.url: 'gone.git': no such"),
        ({"source": {"type": "bundled", "name": "gone"}}, (), "no bundled task is called that"),
        ({}, ("--env", "docker"), "and none is named: give the row an `image` or"),
    ],
)
def test_a_task_whose_repository_cannot_be_had_is_bad_input(
    tmp_path: Path, *, row: dict[str, Any], args: tuple[str, ...], said: str, how: str
) -> None:
    """The row is named before the run directory is touched, by a dry run too."""
    pytest.importorskip("minisweagent")
    if args:
        pytest.importorskip("docker")
    file, out = task_file(tmp_path, **row), tmp_path / "run"
    options = ("--tasks", str(file), "--engine", "scripted:noop", "--out", str(out))
    code, _, err = agentflow(*how.split(), *options, *args)
    assert code == 2
    assert f"error: {file}: o__r-1: " in err
    assert said in err
    assert not out.exists()


def test_a_dry_run_prints_the_plan_and_touches_nothing(tmp_path: Path) -> None:
    """It refuses an --out that holds a run, as the run does."""
    pytest.importorskip("minisweagent")
    out = tmp_path / "run"
    options = ("--tasks", "bundled,pypi", "--engine", "scripted:oracle", "--out", str(out))
    code, said, _ = agentflow("run", *options, "--n", "2", "--dry-run")
    assert code == 0
    assert "would roll out 11 tasks x 2 = 22 episodes on scripted:oracle" in said
    assert not out.exists()
    out.mkdir()
    (out / "run.json").write_text("{}")
    code, _, err = agentflow("run", *options, "--dry-run")
    assert code == 2
    assert "already holds a run" in err


def test_playing_back_what_was_not_recorded_is_bad_input(tmp_path: Path) -> None:
    """More replicas or other tasks than the recording has are named, and nothing is begun."""
    pytest.importorskip("minisweagent")
    recorded, out = tmp_path / "recorded", tmp_path / "run"
    (recorded / "tokens").mkdir(parents=True)
    episode = EpisodeId(uid="pager-off-by-one")
    (recorded / tokens_name(episode.key)).write_bytes(b"")
    options = ("--tasks", "bundled", "--engine", f"scripted:{recorded}", "--out", str(out))
    one = ("--set", "tasks.only=[pager-off-by-one]")
    code, _, err = agentflow("run", *options, *one, "--n", "2")
    assert code == 2
    assert "did not record 1 of the 2 episodes: pager-off-by-one#1; play it back with" in err
    code, _, err = agentflow("run", *options, "--dry-run")
    assert code == 2
    assert "did not record 7 of the 8 episodes: basket-mutable-default#0, " in err
    assert agentflow("run", *options, *one, "--dry-run")[0] == 0
    assert not out.exists()
