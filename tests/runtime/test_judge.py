"""The judge: honest patches get the reward, patches that go for the judge do not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from attacks import LAST_RESORTS, PASS_EVERYTHING, SKIP_TESTS
from bench import FIX

from agentflow.errors import EvalFailed
from agentflow.swe.tasks import load_tasks, oracle_patch

if TYPE_CHECKING:
    from bench import Bench


def new_file(path: str) -> str:
    """A patch that makes one file."""
    head = f"diff --git a/{path} b/{path}\nnew file mode 100644\n--- /dev/null\n+++ b/{path}\n"
    return head + "@@ -0,0 +1 @@\n+note\n"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAST_RESORTS)
async def test_a_run_that_is_cut_short_gets_no_reward(bench: Bench, name: str) -> None:
    """Exit, murder and forgery of the report file, from inside the environment."""
    reward, verdict = await bench.verdict(bench.patch({"adder/core.py": LAST_RESORTS[name]}))
    assert (reward, verdict["resolved"]) == (0.0, False), verdict
    reasons = {"tampered", "incomplete", "tests_failed"}  # root reads what is locked
    assert verdict["reason"] in (reasons if name == "report locked" else reasons - {"tests_failed"})


async def test_an_honest_patch_is_resolved(bench: Bench) -> None:
    """The tests ran, all awaited ones passed, and nothing of the patch was undone."""
    reward, verdict = await bench.verdict(bench.patch({"adder/core.py": FIX}))
    assert (reward, verdict["reason"], verdict["put_back"]) == (1.0, "resolved", []), verdict
    assert verdict["tests_status"] == {
        "FAIL_TO_PASS": {"success": bench.row["FAIL_TO_PASS"], "failure": []},
        "PASS_TO_PASS": {"success": bench.row["PASS_TO_PASS"], "failure": []},
    }


HOOKS = {
    "conftest.py": PASS_EVERYTHING,
    "tests/conftest.py": PASS_EVERYTHING,
    "adder/conftest.py": PASS_EVERYTHING,
    "tests/test_adder.py": "def test_add(): pass\ndef test_same(): pass\n",
    "tests/json.py": "raise SystemExit(0)\n",
    "pytest.ini": "[pytest]\naddopts = --co\n",
    "tox.ini": "[pytest]\naddopts = -k nothing\n",
    "setup.cfg": "[tool:pytest]\naddopts = -p evil\n",
    "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '-p evil'\n",
    "evil.py": SKIP_TESTS,
    "sitecustomize.py": SKIP_TESTS,
    "usercustomize.py": SKIP_TESTS,
    "src/evil.pth": "import evil\n",
    "pytest.py": "import os\nos._exit(0)\n",
    "_pytest/__init__.py": "import os\nos._exit(0)\n",
    "src/unittest.py": "class TestCase: pass\n",
    "json.py": "import os\nos._exit(0)\n",
    "evil-1.0.dist-info/METADATA": "Name: evil\nVersion: 1.0\n",
    "evil-1.0.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
}


@pytest.mark.slow
async def test_hooks_that_a_patch_brings_are_put_back(bench: Bench) -> None:
    """All at once, without a solution: the tests run as they are, and fail."""
    reward, verdict = await bench.verdict(bench.patch(HOOKS), plugins=None)
    assert (reward, verdict["reason"]) == (0.0, "tests_failed"), verdict
    harmless = {"setup.cfg", "pyproject.toml", "evil.py"}
    assert set(verdict["put_back"]) == set(HOOKS) - harmless


@pytest.mark.slow
async def test_an_honest_solution_survives_what_is_put_back(bench: Bench) -> None:
    """A policy that also wrote tests and a conftest.py of its own is not punished for it."""
    patch = bench.patch({**HOOKS, "adder/core.py": FIX, "tests/test_new.py": "assert False\n"})
    reward, verdict = await bench.verdict(patch)
    assert (reward, verdict["reason"]) == (1.0, "resolved"), verdict


@pytest.mark.slow
async def test_tests_replaced_by_a_link_are_put_back(bench: Bench) -> None:
    """A link in the place of the tests' folder leads the judge nowhere else."""
    patch = bench.patch(
        {
            "tests/conftest.py": None,
            "tests/test_adder.py": None,
            "evil/test_adder.py": "def test_add(): pass\ndef test_same(): pass\n",
        }
    ) + (
        "diff --git a/tests b/tests\nnew file mode 120000\n--- /dev/null\n+++ b/tests\n"
        "@@ -0,0 +1 @@\n+evil\n\\ No newline at end of file\n"
    )
    reward, verdict = await bench.verdict(patch)
    assert (reward, verdict["reason"]) == (0.0, "tests_failed"), verdict
    assert "tests" in verdict["put_back"]


@pytest.mark.slow
async def test_tests_that_hang_end_at_their_limit(bench: Bench) -> None:
    """The policy's endless wait is its own doing: reward 0, with the reason."""
    loop = "import time\n\n\ndef add(a, b):\n    time.sleep(600)\n\n\ndef same(a):\n    return a\n"
    patch = bench.patch({"adder/core.py": loop})
    reward, verdict = await bench.verdict(patch, eval_timeout_s=10)
    assert (reward, verdict["reason"]) == (0.0, "timed_out"), verdict


@pytest.mark.parametrize(
    ("patch", "reason"),
    [
        ("", "empty_patch"),
        ("this is no patch\n", "patch_does_not_apply"),
        (new_file("../../outside"), "patch_does_not_apply"),
        (new_file(".git/hooks/x"), "patch_does_not_apply"),
    ],
)
async def test_what_is_no_patch_gets_no_reward(bench: Bench, patch: str, reason: str) -> None:
    """An empty patch, nonsense, and paths outside the repository or in `.git`."""
    reward, verdict = await bench.verdict(patch)
    assert (reward, verdict["reason"]) == (0.0, reason)


@pytest.mark.slow
async def test_a_judge_that_cannot_start_is_not_the_policys_fault(bench: Bench) -> None:
    """A plug-in of the task that is not installed: EvalFailed, which is masked."""
    with pytest.raises(EvalFailed, match=r"adder-1: the tests did not start|not start"):
        await bench.verdict(bench.patch({"adder/core.py": FIX}), plugins=["no_such_plugin"])


@pytest.mark.slow
async def test_a_test_patch_that_does_not_apply_is_the_tasks_fault(bench: Bench) -> None:
    """EvalFailed names the task."""
    broken = "--- a/tests/x.py\n+++ b/tests/x.py\n@@ -1 +1 @@\n-a\n+b\n"
    with pytest.raises(EvalFailed, match="adder-1: the task's test_patch does not apply"):
        await bench.verdict(bench.patch({"adder/core.py": FIX}), test_patch=broken)


@pytest.mark.slow
async def test_a_row_with_a_test_patch_is_judged_by_it(bench: Bench) -> None:
    """SWE-bench's own way: the tests come as a patch to the repository, ids cut at a space."""
    tests = bench.patch(
        {
            "tests/test_more.py": "import pytest\nfrom adder.core import add\n\n\n"
            "@pytest.mark.parametrize('n', [1, 2], ids=['a one', 'a two'])\n"
            "def test_more(n):\n    assert add(n, 0 if n > 5 else 1) == n + 1\n"
        }
    )
    source = {"type": "dir", "path": bench.row["source"]["path"]}
    reward, verdict = await bench.verdict(
        bench.patch({"adder/core.py": FIX, "tests/test_more.py": "broken("}),
        source=source,
        test_patch=tests,
        FAIL_TO_PASS=["tests/test_more.py::test_more[a"],
        PASS_TO_PASS=[],
    )
    assert (reward, verdict["put_back"]) == (1.0, ["tests/test_more.py"]), verdict


@pytest.mark.slow
async def test_a_bundled_task_is_resolved_by_its_oracle(bench: Bench) -> None:
    """From the row that ships to the verdict, ids with spaces and paths included."""
    row = next(r for r in load_tasks("bundled") if r["instance_id"] == "durations-several-files")
    reward, verdict = await bench.verdict(oracle_patch(row), **row)
    assert (reward, verdict["reason"]) == (1.0, "resolved"), verdict


@pytest.mark.slow
@pytest.mark.parametrize("row", load_tasks("bundled"), ids=lambda row: str(row["instance_id"]))
async def test_who_leaves_the_bug_in_is_no_tamperer(bench: Bench, row: dict[str, object]) -> None:
    """A patch that mends nothing has failed, whatever the bug makes of the judge's own tests."""
    reward, verdict = await bench.verdict(new_file("NOTE"), **row)
    assert (reward, verdict["reason"]) == (0.0, "tests_failed"), verdict


@pytest.mark.slow
async def test_a_folder_in_the_place_of_a_judges_file_is_put_back(bench: Bench) -> None:
    """The judge's file is laid down all the same, and its tests decide."""
    tests = {
        "checks/test_new.py": "from adder import add\n\n\n"
        "def test_n():\n    assert add(1, 1) == 2\n"
    }
    reward, verdict = await bench.verdict(
        bench.patch({"checks/test_new.py/x.txt": "x\n"}),
        source={"type": "dir", "path": bench.row["source"]["path"]},
        test_patch=bench.patch(tests),
        FAIL_TO_PASS=["checks/test_new.py::test_n"],
        PASS_TO_PASS=[],
    )
    assert (reward, verdict["reason"]) == (0.0, "tests_failed"), verdict
    assert verdict["put_back"] == ["checks/test_new.py/x.txt"]


@pytest.mark.pypi
@pytest.mark.parametrize("row", load_tasks("pypi"), ids=lambda row: str(row["instance_id"]))
async def test_pairs_of_releases(bench: Bench, row: dict[str, object]) -> None:
    """The difference of the two releases solves the task; without it nothing does."""
    reward, verdict = await bench.verdict(oracle_patch(row), **row)
    assert (reward, verdict["reason"]) == (1.0, "resolved"), verdict
    reward, verdict = await bench.verdict(new_file("NOTE"), **row)
    assert (reward, verdict["reason"]) == (0.0, "tests_failed"), verdict
    assert verdict["tests_status"]["FAIL_TO_PASS"]["success"] == []
    assert verdict["tests_status"]["PASS_TO_PASS"]["failure"] == []
