"""Policies say what they should, and the oracle's commands mend a real repository."""

from __future__ import annotations

import re
import subprocess
import unittest
from typing import TYPE_CHECKING, Any

import pytest

from agentflow.engine.conversation import Conversation
from agentflow.engine.policies import SUBMIT, NoisyPolicy, NoopPolicy, OraclePolicy
from agentflow.engine.tamper_policy import Tampering, TamperPolicy
from agentflow.errors import ConfigError, EngineRejected

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.engine.policy_script import Policy

BLOCK = re.compile(r"```mswea_bash_command\s*\n(.*?)\n```", re.DOTALL)


def task(number: int = 1, patch: str = "diff", statement: str | None = None) -> dict[str, Any]:
    """Make a task row."""
    return {
        "instance_id": f"t-{number}",
        "problem_statement": statement or f"Bug number {number}: it fails.\n",
        "patch": patch,
    }


def at(
    turn: int, prompt: str = "Please solve: Bug number 1: it fails.", key: str = ""
) -> Conversation:
    """Make a conversation at a turn."""
    return Conversation(episode=key, turn=turn, prompt=prompt, latest="")


def commands(policy: Policy, *, limit: int = 60) -> list[str]:
    """Play a policy until it submits; returns its commands."""
    found: list[str] = []
    for turn in range(limit):
        found += BLOCK.findall(policy.answer(at(turn)))
        if found and found[-1] == SUBMIT:
            return found
    raise AssertionError(found)


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder."""
    command = ["git", "-c", "user.name=t", "-c", "user.email=t@t", *arguments]
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout


PLAIN = "def f():\n    return 2\n"
FIXES = {
    "plain": PLAIN,
    "fence": PLAIN + '"""\n```\ncode\n```\n"""\n',
    "unicode": PLAIN + "# naïve e\u0301 中文\n",
    "here-doc end": PLAIN + "AGENTFLOW_PATCH_END\n",
    "dollars": PLAIN + "# $HOME `id` \\n 'x' \"y\"\n",
    "carriage returns": PLAIN.replace("\n", "\r\n"),
    "long": PLAIN + "".join(f"x{i} = {i}\n" for i in range(600)),
    "one long line": PLAIN + "x = '" + "ab" * 3000 + "'\n",
    "no line end": PLAIN + "x = 1",
}


@pytest.mark.parametrize("name", FIXES)
def test_the_oracle_mends_a_repository(tmp_path: Path, name: str) -> None:
    """Its commands, run by bash, leave exactly the fixed file, in several turns if need be."""
    outer = tmp_path / "outer"
    repo = outer / "repo"
    repo.mkdir(parents=True)
    (repo / "f.py").write_text("def f():\n    return 1\n")
    git(outer, "init", "-q")
    git(repo, "init", "-q")
    git(repo, "add", "-A")
    git(repo, "commit", "-qm", "buggy")
    (repo / "f.py").write_bytes(FIXES[name].encode())
    diff = ["git", "diff", "--binary"]
    patch = subprocess.run(diff, cwd=repo, check=True, capture_output=True).stdout.decode()
    git(repo, "checkout", "-q", "f.py")
    played = commands(OraclePolicy([task(2), task(1, patch)]))
    for command in played[:-1]:
        assert len(command) < 3500
        subprocess.run(["bash", "-c", command], cwd=repo, check=True, capture_output=True)
    assert (repo / "f.py").read_bytes() == FIXES[name].encode()
    assert git(repo, "status", "--short").split() == ["M", "f.py"]


def test_the_oracle_works_below_a_foreign_repository(tmp_path: Path) -> None:
    """In a folder without its own git, a repository further up does not swallow the patch."""
    git(tmp_path, "init", "-q")
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "f.py").write_text("a\n")
    patch = "--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n"
    command = commands(OraclePolicy([task(1, patch)]))[0]
    subprocess.run(["bash", "-c", command], cwd=folder, check=True)
    assert (folder / "f.py").read_text() == "b\n"


def test_the_oracle_prefers_the_longest_statement() -> None:
    """One task's text may stand inside another's."""
    short, long = task(1, "short", "It fails"), task(2, "long", "It fails on Mondays")
    answer = OraclePolicy([short, long]).answer(at(0, "Solve: It fails on Mondays. Now."))
    assert "long" in answer


def test_an_unknown_task_is_refused() -> None:
    """The oracle says that it does not know, instead of making something up."""
    with pytest.raises(EngineRejected, match="none of its 1 tasks"):
        OraclePolicy([task(1)]).answer(at(0, "something else"))


@pytest.mark.parametrize("field", ["patch", "problem_statement"])
@pytest.mark.parametrize("value", [None, "", " \n", 7])
def test_a_task_without_an_answer_is_named(field: str, value: object) -> None:
    """Task, field and value stand in the error."""
    with pytest.raises(ConfigError, match=rf"'t-1': {field} is"):
        OraclePolicy([{**task(1), field: value}])


def test_two_tasks_that_look_the_same_are_refused() -> None:
    """One statement with two patches cannot be told apart; the same row twice can."""
    with pytest.raises(ConfigError, match="'t-1' and 't-2'"):
        OraclePolicy([task(1, "a", "same"), task(2, "b", "same")])
    OraclePolicy([task(1), task(1)])


def test_noop_looks_and_submits() -> None:
    """Three well-formed turns without a change."""
    played = commands(NoopPolicy())
    assert played[-1] == SUBMIT
    assert len(played) == 3


def test_noise_is_a_function_of_seed_and_episode() -> None:
    """A second policy of the same seed says the same; another seed or episode does not."""

    def said(seed: int, key: str) -> list[str]:
        policy = NoisyPolicy(seed, [task(1)])
        return [policy.answer(at(turn, key=key)) for turn in range(20)]

    assert said(1, "a") == said(1, "a")
    assert said(1, "a") != said(2, "a")
    assert said(1, "a") != said(1, "b")


def test_noise_ends_and_makes_every_move() -> None:
    """Over some seeds every kind of turn occurs, and each episode submits in bounded time."""
    said = ""
    for seed in range(60):
        policy = NoisyPolicy(seed, [task(1, "p")])
        commands(policy, limit=12)
        said += "".join(policy.answer(at(turn)) for turn in range(12))
    for sign in ("cat no/such/file", "uname -a", "I give up", "```bash", "I know the fix"):
        assert sign in said


def test_tests_are_replaced_by_name(tmp_path: Path) -> None:
    """Every awaited test is written anew, where and in the class that its id says."""
    awaited = ["tests/test_a.py::T::test_b[x y]", "tests/test_a.py::T::test_c", "t/test_d.py::e"]
    row = {**task(), "FAIL_TO_PASS": awaited}
    *writes, shown, submit = commands(TamperPolicy([row], Tampering.TESTS))
    for command in writes:
        subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    written: dict[str, Any] = {}
    exec((tmp_path / "tests" / "test_a.py").read_text(), written)  # our own text
    assert unittest.defaultTestLoader.loadTestsFromTestCase(written["T"]).countTestCases() == 2
    assert (tmp_path / "t" / "test_d.py").read_text() == "def e(*_): pass\n"
    assert (shown, submit) == ("python3 -m pytest -q tests/test_a.py t/test_d.py", SUBMIT)


def test_each_episode_tampers_in_a_way_of_its_own() -> None:
    """Unless one is asked for, replicas differ and a second run does not."""
    rows = [{**task(), "FAIL_TO_PASS": '["tests/test_a.py::test_b"]'}]
    first = [TamperPolicy(rows).answer(at(0, key=str(key))) for key in range(40)]
    assert len(set(first)) == len(Tampering)
    assert first == [TamperPolicy(rows).answer(at(0, key=str(key))) for key in range(40)]
