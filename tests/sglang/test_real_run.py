"""`agentflow run` against a real SGLang: samples hold the ids that the server reported."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import pytest
from witness import Witness, check_run

from agentflow.engine.sglang_cpu import Layout

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sglang

MODEL = Layout.default().checkpoint("a")


async def run(url: str, out: Path, *options: str) -> str:
    """Roll out four bundled tasks from a shell; returns what it printed."""
    words = ["run", "--tasks", "bundled", "--limit", "4", "--engine", url, "--out", str(out)]
    settings = [f"engine.model={MODEL}", "sampling.max_new_tokens=40", *options]
    for setting in settings:
        words += ["--set", setting]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "executors.cli",
        *words,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


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
    assert summary["tokens"]["unaccounted"] == 0
