"""The bundled tasks: broken before their oracle, whole after it, all in two test runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from agentflow.swe.tasks import load_tasks, oracle_patch
from agentflow.swe.tasks.gitwire import git
from agentflow.swe.tasks.loader import BUNDLED
from agentflow.swe.tasks.tree import read_folder, regular_files

if TYPE_CHECKING:
    from pathlib import Path

TASKS = load_tasks("bundled")


def outcomes(root: Path) -> dict[str, str]:
    """Run all tasks' tests in one process; their packages and test ids do not clash."""
    roots = [str(root / task["instance_id"] / part) for task in TASKS for part in ("src", ".")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    flags = ["-c", "/dev/null", "--rootdir", str(root), "-rA", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *flags, "--import-mode=importlib", "--tb=no", "."]
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    lines = re.finditer(r"^(PASSED|FAILED|ERROR) (.*?)(?: - .*)?$", done.stdout, re.MULTILINE)
    return {line[2]: line[1] for line in lines}


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Outcomes of all tests without the oracles, and with them."""
    seen = []
    for patched in (False, True):
        root = tmp_path_factory.mktemp("tasks")
        for task in TASKS:
            folder = root / task["instance_id"]
            for part, place in (("repo", folder), ("tests", folder / "tests")):
                files = regular_files(read_folder(BUNDLED / task["instance_id"] / part))
                for path, data in files.items():
                    (place / path).parent.mkdir(parents=True, exist_ok=True)
                    (place / path).write_bytes(data)
            if patched:
                git(["apply"], stdin=oracle_patch(task).encode(), cwd=str(folder))
        seen.append(outcomes(root))
    return seen


def test_there_are_at_least_six_of_them() -> None:
    """They differ in kind, and each says what is wrong in its own words."""
    assert len({task["problem_statement"] for task in TASKS}) >= 6


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS, ids=lambda task: str(task["instance_id"]))
def test_the_oracle_turns_failing_tests_into_passing_ones(
    task: dict[str, list[str]], before_and_after: list[dict[str, str]]
) -> None:
    """FAIL_TO_PASS fails before and passes after; PASS_TO_PASS passes both times."""
    before, after = before_and_after
    prefix = f"{task['instance_id']}/"
    for test in task["FAIL_TO_PASS"]:
        assert before.get(prefix + test, "ERROR") != "PASSED"
        assert after[prefix + test] == "PASSED"
    for test in task["PASS_TO_PASS"]:
        assert (before[prefix + test], after[prefix + test]) == ("PASSED", "PASSED")
    named = {*task["FAIL_TO_PASS"], *task["PASS_TO_PASS"]}
    assert named == {test.removeprefix(prefix) for test in after if test.startswith(prefix)}
