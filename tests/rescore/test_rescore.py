"""`agentflow rescore`: a judge that is asked again."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from executors.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path


def agentflow(*args: str) -> tuple[int, str, str]:
    """Run the command in this process."""
    result = CliRunner().invoke(app, args)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_patches_are_judged_again_without_an_engine(tmp_path: Path) -> None:
    """A reward that was wrong is put right; a judge that had failed is asked again; others stay."""
    out = tmp_path / "run"
    options = ("--tasks", "bundled", "--limit", "3", "--engine", "scripted:oracle")
    assert agentflow("run", *options, "--out", str(out))[0] == 0
    path = out / "samples.jsonl"
    wrong, failed, other = (json.loads(line) for line in path.read_text().splitlines())
    wrong |= {"reward": 0.0, "termination": "wrong_answer", "verdict": None}
    failed |= {"reward": 0.0, "termination": "infra_sandbox", "cause": "eval_failed",
               "remove_sample": True}  # fmt: skip
    other |= {"patch": None, "cause": "step_limit", "reward": 0.0, "termination": "max_turns"}
    path.write_text("".join(json.dumps(row) + "\n" for row in (wrong, failed, other)))
    before = path.read_bytes()

    code, said, err = agentflow("rescore", str(out))

    assert (code, err) == (0, "")
    assert "judged 2 of 3 samples again: resolved 0 before, 2 now; 2 changed" in said
    assert f"{wrong['uid']}#0: 0 wrong_answer → 1 resolved" in said
    new = out / "samples.rescored.jsonl"
    rows = [json.loads(line) for line in new.read_text().splitlines()]
    assert [row["reward"] for row in rows] == [1.0, 1.0, 0.0]
    assert [row["remove_sample"] for row in rows] == [False, False, False]
    assert [row["cause"] for row in rows] == ["submitted", "submitted", "step_limit"]
    assert rows[0]["verdict"]["reason"] == "resolved"
    assert rows[2] == other
    assert path.read_bytes() == before
    assert agentflow("rescore", str(out))[0] == 0
    assert (out / "samples.rescored.2.jsonl").exists()


def test_a_directory_without_a_run_is_refused(tmp_path: Path) -> None:
    """One line says what is missing; nothing is written."""
    code, _, err = agentflow("rescore", str(tmp_path))
    assert code == 2
    assert err == f"error: DIR: {tmp_path} holds no run; give a directory that has a run.json\n"
    assert not list(tmp_path.iterdir())
