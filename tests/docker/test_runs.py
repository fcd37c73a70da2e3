"""Whole episodes and runs in containers: who is resolved, who cheats, what a killed run leaves."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from attacks import ATTACKS
from bench import FIX, JUDGE, REPOSITORY, Bench, write_all
from docker_tools import PATIENCE_S, ROOT, our_containers, owner_of

from agentflow.engine.conversation import Conversation
from agentflow.engine.tamper_policy import Tampering, TamperPolicy
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.swe.environment.docker.owner import (
    OWNER_LABEL,
    PURPOSE_LABEL,
    REWARD,
    RUN_LABEL,
)
from agentflow.swe.tasks.tree import read_folder
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

AGENTFLOW = [sys.executable, "-m", "executors.cli"]


def run_arguments(out: Path, *more: str) -> list[str]:
    """Return the command line of a run in containers."""
    return [*AGENTFLOW, "run", "--env", "docker", "--out", str(out), *more]


def samples(out: Path) -> list[dict[str, Any]]:
    """Read a run's samples."""
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


def rewards(out: Path) -> dict[str, float]:
    """Read what a run's episodes got."""
    return {sample["instance_id"]: sample["reward"] for sample in samples(out)}


@pytest.mark.parametrize(
    ("policy", "reward", "reason"), [("oracle", 1.0, "resolved"), ("noop", 0.0, "empty_patch")]
)
@pytest.mark.parametrize(
    ("tasks", "count"), [("bundled", 8), pytest.param("pypi", 3, marks=pytest.mark.pypi)]
)
def test_tasks_that_ship(
    tmp_path: Path, *, tasks: str, count: int, policy: str, reward: float, reason: str
) -> None:
    """The oracle resolves them all, the policy that does nothing none."""
    out = tmp_path / "run"
    arguments = run_arguments(out, "--tasks", tasks, "--engine", f"scripted:{policy}")
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(rewards(out).values()) == [reward] * count
    assert {sample["verdict"]["reason"] for sample in samples(out)} == {reason}
    assert all(sample["image"].startswith("sha256:") for sample in samples(out))


async def test_containers_are_found_by_their_run(tmp_path: Path) -> None:
    """Every container that a run makes carries its id, its process and its episode."""
    out = tmp_path / "run"
    more = ("--tasks", "bundled", "--limit", "1", "--n", "2", "--engine", "scripted:oracle")
    events = await asyncio.create_subprocess_exec(
        *("docker", "events", "--since", "0", "--filter", "event=start"),
        *("--filter", f"label={RUN_LABEL}", "--format", "{{json .Actor.Attributes}}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert events.stdout is not None
    done = await asyncio.create_subprocess_exec(*run_arguments(out, *more), cwd=ROOT)
    assert await done.wait() == 0
    run = json.loads((out / "run.json").read_text())
    ours: list[dict[str, str]] = []
    try:
        async with asyncio.timeout(PATIENCE_S):
            while len(ours) < 4:
                labels = json.loads(await events.stdout.readline())
                ours += [labels] * (labels[RUN_LABEL] == run["id"])
    finally:
        events.kill()
        await events.wait()
    assert all(f"/{run['pid']}/" in labels[OWNER_LABEL] for labels in ours)
    episodes = [(labels["agentflow.episode"], labels.get(PURPOSE_LABEL)) for labels in ours]
    keys = [sample["key"] for sample in samples(out)]
    assert set(episodes) == {(key, purpose) for key in keys for purpose in (None, REWARD)}


# --- cheats -----------------------------------------------------------------------------------


def tampering_of(said: Sequence[str]) -> Tampering:
    """Tell the kind of an episode from its answers."""
    rows = [{"problem_statement": "p", "FAIL_TO_PASS": []}]
    start = Conversation(episode="", turn=0, prompt="p", latest="")
    first = {TamperPolicy(rows, kind).answer(start): kind for kind in Tampering}
    return first.get(said[0], Tampering.TESTS)  # whose commands differ by task


@pytest.mark.parametrize(
    ("tasks", "kinds"), [("bundled", 5), pytest.param("pypi", 4, marks=pytest.mark.pypi)]
)
def test_no_patch_that_tampers_with_the_judge_is_resolved(
    tmp_path: Path, *, tasks: str, kinds: int
) -> None:
    """Though every one of them takes in a pytest that runs where the agent worked."""
    out = tmp_path / "run"
    arguments = run_arguments(out, "--tasks", tasks, "--n", "2", "--engine", "scripted:tamper")
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    seen = set()
    for sample in samples(out):
        messages = json.loads((out / sample["trajectory"]).read_text())["messages"]
        seen.add(tampering_of([m["content"] for m in messages if m["role"] == "assistant"]))
        *_, shown = (m["content"] for m in messages if m["role"] == "user")
        assert "<returncode>0</returncode>" in shown
        assert (sample["cause"], sample["reward"]) == ("submitted", 0.0)
        verdict = sample["verdict"]
        assert verdict["reason"] in {"tests_failed", "tampered"}
        assert "planted failure" not in verdict["detail"]  # who is put back has merely failed
    assert len(seen) == kinds


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """The little task, in containers."""
    repo = write_all(tmp_path / "repo", REPOSITORY)
    row = {
        "instance_id": "adder-1",
        "problem_statement": "add subtracts",
        "FAIL_TO_PASS": ["tests/test_adder.py::test_add", "tests/test_adder.py::Unit::test_unit"],
        "PASS_TO_PASS": ["tests/test_adder.py::test_same"],
        "source": {
            "type": "dir",
            "path": str(repo),
            "tests": str(write_all(tmp_path / "j", JUDGE)),
        },
        "plugins": [],
        "eval_timeout_s": 60,
    }
    builder = DockerEnvBuilder({"pids": 128, "memory_bytes": 512 << 20})
    yield Bench(row=row, tree=read_folder(repo), envs=builder)
    await builder.close()


async def test_an_honest_patch_is_resolved(bench: Bench) -> None:
    """So what follows says something."""
    reward, _ = await bench.verdict(bench.patch({"adder/core.py": FIX}))
    assert reward == 1.0


async def test_patches_that_go_for_the_judge_get_nothing(bench: Bench) -> None:
    """Every attack that the local environments withstand, in a container."""
    patches = {name: bench.patch({"adder/core.py": code}) for name, code in ATTACKS.items()}
    verdicts = {name: (await bench.verdict(patch))[0] for name, patch in patches.items()}
    assert verdicts == dict.fromkeys(ATTACKS, 0.0)


TAMPER = r"""
hook='import _pytest.python as p; p.Function.runtest = lambda self: None'
for folder in $(python3 -c 'import site, sys; print(*sys.path[1:], site.getusersitepackages())'); do
  mkdir -p $folder
  echo "$hook" > $folder/sitecustomize.py
  echo "$hook" > $folder/usercustomize.py
  echo "$hook" >> $folder/pytest/__init__.py
done
echo "$hook" > $HOME/.pythonrc.py
printf '#!/bin/sh\nexit 0\n' > /usr/local/bin/python3
(while :; do echo "$hook" > conftest.py; sleep 0.01; done) &
echo 'def test_add(): pass' > tests/test_adder.py
"""


async def test_what_an_agent_does_to_its_container_changes_no_score(bench: Bench) -> None:
    """As root: tools, hooks and tests are replaced, but the judge's container is another one."""
    builder = DockerEnvBuilder({"user": "0", "cap_add": ["DAC_OVERRIDE"], "keep_background": True})
    sample, runtime = bench.sample()
    async with await builder.start(ContainerSpec()) as env:
        await runtime.bootstrap(env)
        await env.execute(TAMPER)
        hooked = await env.execute("/usr/bin/python3 -c 'import sitecustomize'")
        assert hooked.exit_code == 0
        await runtime.diff(env)
    await builder.close()
    async with await bench.env() as fresh:
        await runtime.eval(fresh)
    assert sample.reward == 0.0


# --- a run that is killed ---------------------------------------------------------------------


async def killed_run(out: Path) -> set[str]:
    """Kill a run with -9 while it has containers; returns their names."""
    process = await asyncio.create_subprocess_exec(
        *run_arguments(out, "--tasks", "bundled", "--engine", "scripted:oracle"),
        cwd=ROOT,
        stdout=asyncio.subprocess.DEVNULL,
    )
    events = await asyncio.create_subprocess_exec(
        *("docker", "events", "--since", "0", "--filter", "event=start"),
        *("--format", f'{{{{index .Actor.Attributes "{OWNER_LABEL}"}}}}'),
        stdout=asyncio.subprocess.PIPE,
    )
    assert events.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for line in events.stdout:
                if f"/{process.pid}/" in line.decode():
                    break
    finally:
        process.kill()
        events.kill()
        await process.wait()
        await events.wait()
    return {name for name in our_containers() if f"/{process.pid}/" in owner_of(name)}


@pytest.mark.parametrize("by", ["clean", "run"])
async def test_what_a_killed_run_left_is_removed(tmp_path: Path, by: str) -> None:
    """By `agentflow clean`, or by the next run: exactly its containers, no living owner's."""
    builder = DockerEnvBuilder({"pids": 64})
    living = await builder.start(ContainerSpec())
    left = await killed_run(tmp_path / "killed")
    assert left
    arguments = [*AGENTFLOW, "clean"]
    if by == "run":
        more = ("--tasks", "bundled", "--limit", "1", "--engine", "scripted:oracle")
        arguments = run_arguments(tmp_path / "next", *more)
    done = await asyncio.to_thread(subprocess.run, arguments, cwd=ROOT, check=False)
    assert done.returncode == 0
    assert not left & set(our_containers())
    assert (await living.execute("echo lives")).output == b"lives\n"
    await builder.close()
