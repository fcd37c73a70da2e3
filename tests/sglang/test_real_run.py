"""`agentflow run` against a real SGLang: samples hold the ids that the server reported."""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import pytest
from token_witness import check_run
from witness import Witness

from agentflow.engine.sglang_cpu import Layout
from agentflow.types import SyncMode

pytestmark = pytest.mark.sglang

MODEL = Layout.default().checkpoint("a")


async def run(url: str, out: Path, *options: str, source: str = "bundled", tasks: int = 4) -> str:
    """Roll out tasks from a shell; returns what it printed."""
    words = ["run", "--tasks", source, "--limit", str(tasks)]
    words += ["--engine", url, "--out", str(out)]
    settings = [f"engine.model={MODEL}", "sampling.max_new_tokens=40", *options]
    for setting in settings:
        words += ["--set", setting]
    code, printed = await command(*words)
    assert code == 0, printed
    return printed


async def command(*words: str) -> tuple[int | None, str]:
    """Call `agentflow` in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "executors.cli",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    return process.returncode, printed.decode()


async def test_the_demonstration_tells_what_a_model_did(sglang_url: str, tmp_path: Path) -> None:
    """This one speaks at random: every turn is told as malformed, and that no command ran fails."""
    out = tmp_path / "run"
    words = ["demo-llm", "--engine", sglang_url, "--model", str(MODEL), "--limit", "1"]
    code, printed = await command(*words, "--out", str(out))
    assert code == 1, printed
    assert "5 turns: 0 commands executed (0 with return code 0), 5 malformed; reward 0" in printed
    (trajectory,) = (out / "trajectories").iterdir()
    messages = json.loads(trajectory.read_text())["messages"]
    assert sum(m["role"] == "assistant" for m in messages) == 8 + 5


async def test_samples_are_what_the_server_reported(sglang_url: str, tmp_path: Path) -> None:
    """Every id, log-prob and version of every sample, and nothing besides, is the server's own."""
    out = tmp_path / "run"
    async with Witness(sglang_url).listening() as witness:
        printed = await run(witness.url, out, "flow.agent.step_limit=3")
    generated = check_run(out, witness.generations)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["episodes"] == 4
    assert "of 4 episodes" in printed
    assert summary["tokens"]["received"] == summary["tokens"]["delivered"] == generated > 200
    assert (summary["tokens"]["unaccounted"], summary["tokens"]["unseen"]) == (0, 0)


@pytest.mark.parametrize("source", ["bundled", "pypi"])
async def test_scheduled_by_action_under_syncs_and_preemptions_they_still_are(
    sglang_url: str, tmp_path: Path, source: str
) -> None:
    """Groups of 4, aborted for updates at random and for each other: closed and exact."""
    out = tmp_path / "run"
    policy = f"{{name: '{Path(__file__).with_name('every_third.py')}:EveryThird'}}"
    async with Witness(sglang_url).listening() as witness:
        await run(
            witness.url,
            out,
            "flow.agent.step_limit=3",
            "flow.agent.action_regex='^(.?)'",  # any reply is a command, so that slots change hands
            "run.n=4",
            "run.seed=42",  # by which all modes of an update come early
            "rollout.enable_action_level_scheduling=true",
            "rollout.max_concurrency=8",
            "rollout.gen_concurrency=3",
            f"rollout.policy={policy}",
            "rollout.preemption=true",
            "rollout.max_preemptions=20",
            "rollout.max_attempts=1000",
            "rollout.rehearse_syncs_s=1.5",
            source=source,
            tasks=3,
        )
    generated = check_run(out, witness.generations)
    summary = json.loads((out / "summary.json").read_text())
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    happened = Counter(event["kind"] for event in events)
    modes = {event["mode"] for event in events if event["kind"] == "sync_started"}
    assert modes == set(SyncMode)
    assert summary["episodes"] == summary["samples"]["delivered"] == 12
    assert summary["samples"]["unaccounted"] == summary["tokens"]["unaccounted"] == 0
    assert summary["tokens"]["received"] == summary["tokens"]["delivered"] == generated
    assert summary["tokens"]["unseen"] == 0
    assert happened["sync_started"] == happened["sync_ended"] > 0
    assert happened["preempted"] > 0
    assert happened["resumed"] > 0
    assert happened["env_started"] == happened["env_stopped"]
