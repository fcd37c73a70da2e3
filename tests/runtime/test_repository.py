"""Bootstrap and diff: the repository goes in exactly, the patch comes out exactly."""

from __future__ import annotations

import pickle
import subprocess
from typing import TYPE_CHECKING

import pytest

from agentflow.errors import BootstrapFailed, PreprocessFailed
from agentflow.swe.runtime import PytestRuntimeBuilder
from agentflow.swe.runtime.repository import disk_is_full
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.swe.tasks.tree import read_folder
from agentflow.types import CommandResult, EpisodeId

if TYPE_CHECKING:
    from pathlib import Path

    from bench import Bench

CHANGES = """
set -e
printf 'one\\r\\ntwo' > crlf.txt
printf 'gr\\374\\337e\\n' > latin.txt
printf '\\000\\001\\377' > binary.bin
printf 'x' > 'odd "name'
mkdir -p deep/er && echo new > deep/er/new.py
echo '#!/bin/sh' > run.sh && chmod +x run.sh
ln -s README.md link
rm tests/test_adder.py
echo 'changed' >> README.md
mkdir __pycache__ && echo x > __pycache__/a.pyc
"""

HOSTILE = {
    "committed": "git add -A && git commit -qm mine && git tag v1 && git checkout -q --orphan x",
    "no repository": "rm -rf .git",
    "broken repository": "echo junk > .git/HEAD && rm -rf .git/objects",
    "attributes and drivers": (
        "git config core.autocrlf true && git config diff.evil.command 'echo forged'"
        " && git config diff.external 'echo forged' && git config core.fileMode false"
        " && git config core.worktree /tmp && git config core.fsmonitor 'touch /tmp/ran'"
        " && printf '* diff=evil text eol=crlf ident filter=evil\\n' > .git/info/attributes"
    ),
}


LISTING = (
    "find . -path ./.git -prune -o -name __pycache__ -prune -o -type f -exec sha256sum {} + "
    "-o -type l -printf 'link %p %l\\n' | sort"
)


def listed_here(folder: Path) -> list[str]:
    """Files with their digests, and links with their targets."""
    done = subprocess.run(LISTING, shell=True, check=True, cwd=folder, capture_output=True)
    return done.stdout.decode().splitlines()


def test_a_row_that_is_none_ends_its_own_episode() -> None:
    """It does not end the work: others may go on."""
    data = SWEData(task={"instance_id": "mine"})
    sample = SWESample(episode=EpisodeId(uid="mine"), m=SWEMeta(data=data))
    with pytest.raises(PreprocessFailed, match="mine: problem_statement is missing"):
        PytestRuntimeBuilder().build(sample)


def applied(bench: Bench, folder: Path, patch: str) -> dict[str, object]:
    """The repository with the patch applied by a plain git, as a tree."""
    subprocess.run(["cp", "-r", bench.row["source"]["path"], folder], check=True)
    command = ["git", "apply", "--whitespace=nowarn"]
    subprocess.run(command, check=True, cwd=folder, input=patch.encode())
    return dict(read_folder(folder))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "committed" else pytest.mark.slow) for n in HOSTILE],
)
async def test_the_patch_is_exact_whatever_was_done_to_git(
    bench: Bench, tmp_path: Path, name: str
) -> None:
    """New, changed, deleted, binary, linked and executable files, applied elsewhere, are equal."""
    sample, runtime = bench.sample()
    async with await bench.env() as env:
        await runtime.bootstrap(env)
        await env.execute(CHANGES + HOSTILE[name], check=True)
        await runtime.diff(env)
        listing = await env.execute(LISTING, check=True)
    patch = sample.m.rollout.patch
    assert patch is not None
    tree = applied(bench, tmp_path / "applied", patch)
    listed = [line for line in listing.text.splitlines() if not line.endswith(" ./.git")]
    assert listed_here(tmp_path / "applied") == listed
    assert tree["run.sh"].mode == "100755"  # type: ignore[attr-defined]
    assert sample.m.rollout.verdict is None


async def test_bootstrap_makes_one_clean_commit(bench: Bench) -> None:
    """The agent sees a repository with nothing to commit, in which it can commit at once."""
    _, runtime = bench.sample()
    async with await bench.env() as env:
        await runtime.bootstrap(env)
        status = await env.execute("git status --porcelain && git log --oneline --all | wc -l")
        assert status.text.split() == ["1"]
        await env.execute("echo x > x && git add -A && git commit -qm mine", check=True)
        judged = await env.execute("ls -A . tests; grep -r core tests || true")
    assert "core" not in judged.text.replace("adder", "")
    assert ".agentflow" not in judged.text


async def test_links_out_of_the_repository_do_not_come_along(bench: Bench, tmp_path: Path) -> None:
    """They are left out, and what they point at is neither read nor written."""
    repo = tmp_path / "repo"
    (tmp_path / "secret").write_text("secret")
    (repo / "out").symlink_to(tmp_path / "secret")
    (repo / "in").symlink_to("README.md")
    sample, runtime = bench.sample()
    async with await bench.env() as env:
        await runtime.bootstrap(env)
        shown = await env.execute("ls; readlink in; git status --porcelain", check=True)
        await runtime.diff(env)
    assert "out" not in shown.text.split()
    assert "README.md" in shown.text.split()
    assert sample.m.rollout.patch == ""


async def test_repositories_made_inside_are_plain_files(bench: Bench) -> None:
    """A clone or an empty `git init` in the tree ends neither the diff nor its content."""
    sample, runtime = bench.sample()
    async with await bench.env() as env:
        await runtime.bootstrap(env)
        await env.execute("git init -q sub && echo x > sub/file && git init -q empty", check=True)
        await runtime.diff(env)
    assert sample.m.rollout.patch is not None
    assert "b/sub/file" in sample.m.rollout.patch
    assert "Subproject" not in sample.m.rollout.patch


async def test_a_patch_over_the_limit_is_none(bench: Bench) -> None:
    """An empty patch, a verdict that says why, and reward 0 - not an error of ours."""
    sample, _ = bench.sample()
    runtime = PytestRuntimeBuilder({"max_patch_bytes": 1 << 20}).build(sample)
    async with await bench.env() as env:
        await runtime.bootstrap(env)
        await env.execute("head -c 3000000 /dev/urandom > big", check=True)
        await runtime.diff(env)
        await runtime.eval(env)  # never comes to look at the environment
    assert sample.m.rollout.patch == ""
    assert sample.m.rollout.verdict is not None
    assert (sample.reward, sample.m.rollout.verdict["reason"]) == (0.0, "patch_too_large")


async def test_a_workdir_that_is_not_empty_is_refused(bench: Bench) -> None:
    """A task that brings its repository overwrites nobody's."""
    _, runtime = bench.sample()
    async with await bench.env() as env:
        await env.write_files({"precious": b"x"})
        with pytest.raises(BootstrapFailed, match="not empty"):
            await runtime.bootstrap(env)


@pytest.mark.slow
async def test_a_repository_in_the_image_is_judged_too(bench: Bench) -> None:
    """Without a source the tree stands there already; its history, with the answer, goes.

    Its base is in the agent's own `.git`: whoever removes that has no patch.
    """
    tests = bench.patch(
        {
            "tests/test_more.py": (
                "from adder.core import add\n\n\ndef test_m():\n    assert add(1, 1) == 2\n"
            )
        }
    )
    files = {path: file.data for path, file in bench.tree.items()}
    sample, runtime = bench.sample(
        source={"type": "image"},
        test_patch=tests,
        FAIL_TO_PASS=["tests/test_more.py::test_m"],
        PASS_TO_PASS=[],
    )
    async with await bench.env() as env:
        await env.write_files(files)
        await env.execute("git init -q . && echo answer > .git/answer", check=True)
        await runtime.bootstrap(env)
        assert (await env.execute("ls .git/answer")).exit_code != 0
        await env.execute("sed -i 's/a - b/a + b/' adder/core.py", check=True)
        await runtime.diff(env)
        patch = sample.m.rollout.patch
        await env.execute("rm -rf .git", check=True)
        await runtime.diff(env)
    assert sample.m.rollout.verdict is not None
    assert sample.m.rollout.patch == ""
    assert sample.m.rollout.verdict["reason"] == "repository_broken"
    sample.m.rollout.patch = patch
    async with await bench.env() as env:
        await env.write_files(files)
        await runtime.eval(env)
    assert sample.reward == 1.0, sample.m.rollout.verdict


async def test_a_pickled_runtime_leaves_its_files_behind(bench: Bench) -> None:
    """Partial samples stay small; the runtime is built again for the next attempt."""
    _, runtime = bench.sample()
    again = pickle.loads(pickle.dumps(runtime))
    async with await bench.env() as env:
        with pytest.raises(RuntimeError, match="build the runtime again"):
            await again.bootstrap(env)


@pytest.mark.parametrize(
    ("said", "full"),
    [
        ("fatal: write error: No space left on device\n", True),
        ("error: unable to write file x: Disk quota exceeded\n", True),
        ("error: No space left on device: does not exist in index\n", False),
    ],
)
async def test_a_full_disk_is_told_from_a_bad_repository(
    bench: Bench, said: str, *, full: bool
) -> None:
    """By the end of git's line, where no file name stands, or by a test write."""
    async with await bench.env() as env:
        failed = CommandResult(exit_code=128, output=said.encode())
        assert await disk_is_full(env, failed) is full
