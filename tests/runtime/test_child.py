"""The judge's end inside the environment, against code that shares its process."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import ATTACKS
from bench import FIX, JUDGE, REPOSITORY

import agentflow.swe.runtime
from agentflow.swe.runtime.report import read_report
from agentflow.swe.runtime.verdict import Reason, judge

KEY = b"k" * 32
FAIL_TO_PASS = ["tests/test_adder.py::test_add", "tests/test_adder.py::Unit::test_unit"]
PASS_TO_PASS = ["tests/test_adder.py::test_same"]
CUT_SHORT = {"sys.exit", "skip", "xfail", "the judge's module"}
"""These touch nothing of the judge: their tests just do not pass."""


def run(root: Path, core: str) -> tuple[Reason, str]:
    """Run the judge's end over the repository with `core` in it; decide on its report."""
    for path, text in {**REPOSITORY, **JUDGE, "adder/core.py": core}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    there = root / ".git" / "agentflow"
    shutil.copytree(Path(agentflow.swe.runtime.__file__).with_name("child"), there / "child")
    plan = {
        "key": KEY.hex(),
        "hello": "hello",
        "salt": "salt",
        "files": ["tests/test_adder.py"],
        "awaited": FAIL_TO_PASS,
        "import_roots": ["src", "."],
        "plugins": [],
        "pytest_config": None,
        "patched": ["adder/core.py"],
    }
    (there / "plan.json").write_text(json.dumps(plan))
    command = [sys.executable, "-I", "-B", ".git/agentflow/child"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("hello\n"), done.stderr
    report = read_report((there / "report").read_bytes(), KEY)
    if not report.complete:
        return (Reason.TAMPERED if report.violation else Reason.INCOMPLETE), report.violation
    verdict = judge(report, fail_to_pass=FAIL_TO_PASS, pass_to_pass=PASS_TO_PASS)
    return verdict.reason, verdict.detail


def test_honest_code_is_resolved(tmp_path: Path) -> None:
    """Nothing that pytest and its plugins do by themselves looks like an attack."""
    assert run(tmp_path, FIX) == (Reason.RESOLVED, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_code_that_goes_for_the_judge_is_not_resolved(tmp_path: Path, name: str) -> None:
    """Whatever the code under test does to the process that it shares with the tests."""
    reason, detail = run(tmp_path, ATTACKS[name])
    assert reason is (Reason.TESTS_FAILED if name in CUT_SHORT else Reason.TAMPERED), detail
