"""`agentflow run --journal`, and --resume as a user meets it."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from agentflow.config import AgentflowConfig, TasksConfig
from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.cli.app import app
from executors.data.journal import Journal
from executors.data.resuming import resumed_config
from executors.runs.run_dir import RunDir
from executors.runs.session import Rollout
from executors.wiring import make_samples, select_tasks

if TYPE_CHECKING:
    from pathlib import Path

ORACLE = ("--tasks", "bundled", "--limit", "1", "--engine", "scripted:oracle")


def agentflow(*args: str) -> tuple[int, str, str]:
    """Run the command in this process."""
    result = CliRunner().invoke(app, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def test_what_cannot_be_resumed_is_told_in_one_line(tmp_path: Path) -> None:
    """No run, no journal, other options: bad input, and nothing is changed."""
    code, _, err = agentflow("run", "--resume", str(tmp_path))
    assert code == 2
    assert (
        err == f"error: --resume: {tmp_path} holds no run; give a directory that has a run.json\n"
    )
    code, _, err = agentflow("run", "--resume", str(tmp_path), "--n", "3", "--seed", "1")
    assert code == 2
    assert "--resume: takes the run as it was; leave out --n, --seed" in err
    (tmp_path / "run.json").write_text(json.dumps({"status": "running"}))
    (tmp_path / "config.yaml").write_text("run: {n: 1}\n")
    code, _, err = agentflow("run", "--resume", str(tmp_path))
    assert code == 2
    assert "has no journal.sqlite: only a run with rollout.journal: true (--journal)" in err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.yaml", "run.json"]


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ('{"status": "run', "run.json: is not JSON"),
        ("{}", "run.json: has no status: it is not what a run wrote"),
        ("[]", "run.json: has no status: it is not what a run wrote"),
    ],
)
def test_a_damaged_run_file_is_told_in_one_line(tmp_path: Path, damage: str, told: str) -> None:
    """Whoever reads it."""
    out = begun(tmp_path)
    (out / "run.json").write_text(damage)
    for command in (["run", "--resume"], ["status"], ["why", "a"], ["trace"]):
        code, _, err = agentflow(*command, str(out))
        assert (code, err.count("\n")) == (2, 1)
        assert told in err


def test_a_damaged_line_of_samples_is_named(tmp_path: Path) -> None:
    """File and line; a last one that was not finished is none."""
    out = begun(tmp_path)
    for damage, told in (("x", "is not JSON"), ("{}", "has no key"), ("3", "has no key")):
        (out / "samples.jsonl").write_text(f'{{"key": "a"}}\n{damage}\n{{"ke')
        code, _, err = agentflow("rescore", str(out))
        assert code == 2
        assert f"samples.jsonl:2: {told}" in err


@pytest.mark.slow
def test_a_run_with_a_journal_ends_as_any_other_and_cannot_be_run_twice(tmp_path: Path) -> None:
    """The journal is gone with the last sample; resuming then has nothing to do."""
    out = tmp_path / "run"
    code, said, err = agentflow("run", *ORACLE, "--journal", "--out", str(out))
    assert (code, err) == (0, "")
    assert "resolved 1 of 1" in said
    assert not list(out.glob("journal*"))
    before = (out / "run.json").read_bytes()
    code, said, _ = agentflow("run", "--resume", str(out))
    assert (code, said) == (0, f"nothing is left to do: the run in {out} is done\n")
    assert (out / "run.json").read_bytes() == before


@pytest.mark.slow
def test_a_run_that_was_moved_is_resumed_where_it_is(tmp_path: Path) -> None:
    """Everything it needs is in the directory; torn last lines are cut off."""
    out, moved = tmp_path / "run", tmp_path / "moved"
    code, _, _ = agentflow("run", *ORACLE, "--journal", "--n", "2", "--out", str(out))
    assert code == 0
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(run | {"status": "running", "ended": None}))
    journal = tmp_path / "journal.sqlite"
    killed(journal)
    lines = (out / "samples.jsonl").read_text().splitlines(keepends=True)
    (out / "samples.jsonl").write_text(lines[0] + lines[1][:20])
    shutil.copy(journal, out / "journal.sqlite")
    out.rename(moved)
    code, said, err = agentflow("run", "--resume", str(moved))
    assert (code, err) == (0, "")
    assert "resolved 2 of 2 episodes (2 planned)" in said
    rows = [json.loads(line) for line in (moved / "samples.jsonl").read_text().splitlines()]
    assert sorted(row["replica_index"] for row in rows) == [0, 1]
    preds = [json.loads((moved / n).read_text()) for n in ("preds.json", "preds.1.json")]
    assert all(len(p) == 1 for p in preds)
    resumed = json.loads((moved / "run.json").read_text())
    assert (len(resumed["resumed"]), resumed["id"]) == (1, run["id"])


@pytest.mark.slow
@pytest.mark.parametrize("left", ["no file", "empty file", "tables"])
def test_a_run_that_was_killed_before_it_issued_anything_is_run_whole(
    tmp_path: Path, left: str
) -> None:
    """Nothing was issued yet: the configuration says what is to be."""
    out = begun(tmp_path)
    if left == "tables":
        journal = Journal(out / "journal.sqlite", keep_results=False)
        journal.open()
        journal.close()
    elif left == "empty file":
        (out / "journal.sqlite").touch()
    code, said, err = agentflow("run", "--resume", str(out))
    assert (code, err) == (0, "")
    assert "resolved 1 of 1 episodes (1 planned)" in said
    assert json.loads((out / "run.json").read_text())["status"] == "done"


def test_ended_episodes_without_their_journal_are_not_run_again(tmp_path: Path) -> None:
    """A journal that is gone is told, and nothing is changed."""
    out = begun(tmp_path)
    (out / "samples.jsonl").write_text('{"key": "a"}\n')
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir()}
    code, _, err = agentflow("run", "--resume", str(out))
    assert code == 2
    assert "journal.sqlite is missing or empty, though 1 episodes have ended" in err
    assert {p.name: p.stat().st_mtime_ns for p in out.iterdir()} == before


def test_the_journal_of_a_run_that_was_killed_after_its_end_goes(tmp_path: Path) -> None:
    """Nobody comes back to it; a trainer's stays, as groups may not have been used yet."""
    out = begun(tmp_path)
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(run | {"status": "done"}))
    for trainers in (True, False):
        journal = Journal(out / "journal.sqlite", keep_results=trainers)
        journal.open()
        journal.close()
        code, said, _ = agentflow("run", "--resume", str(out))
        assert (code, said) == (0, f"nothing is left to do: the run in {out} is done\n")
        assert (out / "journal.sqlite").exists() == trainers
        (out / "journal.sqlite").unlink(missing_ok=True)


def test_what_another_process_ended_meanwhile_is_not_run_again(tmp_path: Path) -> None:
    """What is left is read under the lock: who held it before may have ended the run."""
    out = begun(tmp_path)
    config = resumed_config(out)
    run = json.loads((out / "run.json").read_text())
    (out / "run.json").write_text(json.dumps(run | {"status": "done"}))
    with pytest.raises(ConfigError, match=r"nothing is left to do: the run in .* is done"):
        asyncio.run(Rollout(config, resume=True).run())
    assert not (out / ".lock").exists()


def test_a_directory_that_is_being_resumed_is_refused(tmp_path: Path) -> None:
    """Two at once: the second one is told so before it looks at anything."""
    out = begun(tmp_path)
    holder = RunDir(out, runner=AsyncioRunner())
    holder.take_over()
    try:
        code, _, err = agentflow("run", "--resume", str(out))
    finally:
        holder.close()
    assert (code, err) == (2, f"error: run.out: {out} is in use by another run\n")


def begun(tmp_path: Path) -> Path:
    """Make the directory of a run that was killed as soon as it was one."""
    out = tmp_path / "run"
    config = AgentflowConfig.model_validate(
        {
            "tasks": {"source": "bundled", "limit": 1},
            "engine": {"url": "scripted:oracle"},
            "run": {"out": str(out)},
            "rollout": {"journal": True},
        }
    )
    with RunDir(out, runner=AsyncioRunner()) as made:
        made.open(config, argv=(), model="m")
    return out


def killed(path: Path) -> None:
    """Make the journal of a run that was killed before anything was kept of its episodes."""
    tasks = select_tasks(AgentflowConfig(tasks=TasksConfig(source="bundled", limit=1)))
    journal = Journal(path, keep_results=False)
    journal.open()
    journal.issued(make_samples(tasks, replicas=2))
    journal.write(journal.take_queued())
    journal.close()
