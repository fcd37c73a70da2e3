"""`agentflow run` against two real SGLang servers: a worker for each, and the loss of one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from test_real_run import MODEL, run
from token_witness import check_run
from witness import Witness

from agentflow.engine.sglang_cpu import CpuServer, Layout
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sglang

OPTIONS = (
    "flow.agent.step_limit=3",
    "flow.agent.action_regex='^(.?)'",  # any reply is a command
    "run.n=4",
    "run.seed=42",  # by which all modes of an update come early
    "rollout.enable_action_level_scheduling=true",
    "rollout.max_concurrency=8",
    "rollout.gen_concurrency=4",
    "rollout.max_attempts=1000",
)


@pytest.fixture(scope="module")
def second() -> Iterator[CpuServer]:
    """Serve the same checkpoint once more."""
    with CpuServer(Layout.default(), MODEL) as server:
        yield server


def events_of(out: Path) -> list[dict[str, Any]]:
    """Read what has happened so far."""
    path = out / "events.jsonl"
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def by_worker(events: list[dict[str, Any]], kind: str) -> Counter[str]:
    """Count events of a kind by the worker that had their episode."""
    where: dict[tuple[str, int], str] = {}
    found: Counter[str] = Counter()
    for event in events:
        episode = (event.get("uid", ""), event.get("replica_index", 0))
        if event["kind"] == "leased":
            where[episode] = event["worker"]
        if event["kind"] == kind:
            found[where[episode]] += 1
    return found


async def test_two_servers_are_filled_by_two_workers_and_samples_are_exact(
    sglang_url: str, second: CpuServer, tmp_path: Path
) -> None:
    """Updates in all modes reach both; every id is what the server said that had the episode."""
    out = tmp_path / "run"
    async with AsyncExitStack() as stack:
        both = [
            await stack.enter_async_context(Witness(url).listening())
            for url in (sglang_url, second.url)
        ]
        url = ",".join(witness.url for witness in both)
        await run(url, out, *OPTIONS, "rollout.rehearse_syncs_s=1.5", tasks=4)
    generated = check_run(out, [g for witness in both for g in witness.generations])
    summary = json.loads((out / "summary.json").read_text())
    events = events_of(out)
    assert summary["episodes"] == summary["samples"]["delivered"] == 16
    assert summary["samples"]["unaccounted"] == summary["tokens"]["unaccounted"] == 0
    assert summary["tokens"]["received"] == summary["tokens"]["delivered"] == generated
    assert summary["tokens"]["unseen"] == 0
    assert {e["mode"] for e in events if e["kind"] == "sync_started"} == set(SyncMode)
    started = by_worker(events, "generation_started")
    assert started.keys() == {"replica-0", "replica-1"}
    for witness, count in zip(both, (started["replica-0"], started["replica-1"]), strict=True):
        sent = {generation.rid for generation in witness.generations}
        assert 0 < len(sent) <= count  # one aborted before it was sent was not
        assert "/pause_generation" in witness.calls
        assert "/continue_generation" in witness.calls


async def test_when_a_server_is_lost_its_worker_goes_on_with_the_other(
    sglang_url: str, second: CpuServer, tmp_path: Path
) -> None:
    """Only what was being generated there at that moment is lost, and told as such."""
    out = tmp_path / "run"
    running = asyncio.create_task(run(f"{sglang_url},{second.url}", out, *OPTIONS, tasks=4))
    async with asyncio.timeout(120):
        while by_worker(events_of(out), "generation_ended")["replica-1"] < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # the file does not tell when it grows
    await asyncio.to_thread(second.stop)
    ended = by_worker(events_of(out), "ended")["replica-1"]
    await running
    summary = json.loads((out / "summary.json").read_text())
    events = events_of(out)
    assert summary["episodes"] == summary["samples"]["delivered"] == 16
    assert summary["samples"]["unaccounted"] == summary["tokens"]["unaccounted"] == 0
    failed = [event for event in events if event["kind"] == "failed"]
    assert {event["cause"] for event in failed} <= {"engine_died"}
    assert len(failed) == summary["masked"] <= 2  # its slots
    assert by_worker(events, "ended")["replica-1"] > ended
