"""Event sinks: what is written, when, and what happens when it cannot be."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentflow.observe import jsonl
from agentflow.observe.events import ListEvents
from agentflow.observe.jsonl import JsonlEvents
from agentflow.runner import AsyncioRunner
from agentflow.types import Cause, EpisodeId

if TYPE_CHECKING:
    from collections.abc import Iterator

EPISODE = EpisodeId(uid="u", replica_index=2)


@pytest.fixture
def runner() -> Iterator[AsyncioRunner]:
    """Give a runner and end its threads."""
    runner = AsyncioRunner()
    yield runner
    runner.close()


def lines(path: Path) -> list[dict[str, object]]:
    """Read an event log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_events_are_stamped_and_written_in_order(
    tmp_path: Path, runner: AsyncioRunner
) -> None:
    """Each has both clocks, its kind, whose it is, and its facts; enums are their values."""
    events = JsonlEvents(tmp_path / "events.jsonl", runner)
    events.emit("run_started", planned=3)
    events.emit("failed", EPISODE, cause=Cause.ENV_DIED, path=tmp_path)
    events.close()
    events.close()
    first, second = lines(tmp_path / "events.jsonl")
    assert (first["kind"], first["planned"]) == ("run_started", 3)
    assert second["uid"] == "u"
    assert second["replica_index"] == 2
    assert (second["cause"], second["path"]) == ("env_died", str(tmp_path))
    assert first["t"] <= second["t"] <= runner.now()
    assert second["wall"] == pytest.approx(runner.wall_time(), abs=60)


async def test_a_log_is_appended_to(tmp_path: Path, runner: AsyncioRunner) -> None:
    """What stands in the file stays."""
    for kind in ("one", "two"):
        events = JsonlEvents(tmp_path / "events.jsonl", runner)
        events.emit(kind)
        events.close()
    assert [event["kind"] for event in lines(tmp_path / "events.jsonl")] == ["one", "two"]


async def test_a_full_buffer_is_written_at_once(tmp_path: Path, runner: AsyncioRunner) -> None:
    """Before that nothing is, so that emitting costs no system call."""
    path = tmp_path / "events.jsonl"
    events = JsonlEvents(path, runner)
    events.emit("small")
    assert not path.exists()
    events.emit("large", text="x" * jsonl.FLUSH_BYTES)
    assert len(lines(path)) == 2
    events.close()


async def test_a_quiet_log_is_written_after_a_moment(
    tmp_path: Path, runner: AsyncioRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event does not stay in memory only because no other follows."""
    monkeypatch.setattr(jsonl, "FLUSH_S", 0.0)
    path = tmp_path / "events.jsonl"
    events = JsonlEvents(path, runner)
    events.emit("alone")
    turned = asyncio.Event()
    asyncio.get_running_loop().call_later(0.0, turned.set)  # after the log's own timer
    await turned.wait()
    assert len(lines(path)) == 1
    events.close()


async def test_a_full_disk_is_reported_once_and_emitting_goes_on(
    runner: AsyncioRunner, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised out of `emit`; the failure is kept for the end of the run."""
    events = JsonlEvents(Path("/dev/full"), runner)
    for _ in range(3):
        events.emit("large", text="x" * jsonl.FLUSH_BYTES)
    events.close()
    assert events.failure is not None
    assert events.failure.strerror == "No space left on device"
    assert len(caplog.records) == 1


async def test_events_of_several_threads_are_whole_lines(
    tmp_path: Path, runner: AsyncioRunner
) -> None:
    """The flow worker's loop and the main loop may emit at once."""
    events = JsonlEvents(tmp_path / "events.jsonl", runner)

    async def emit_many(name: str) -> str:
        for i in range(300):
            events.emit("tick", number=i, thread=name, pad="x" * 500)
        return threading.current_thread().name

    there, here = await asyncio.gather(
        runner.on_flow_worker(emit_many("worker")), emit_many("main")
    )
    events.close()
    assert there != here
    seen = lines(tmp_path / "events.jsonl")
    for name in ("worker", "main"):
        assert [e["number"] for e in seen if e["thread"] == name] == list(range(300))


def test_an_event_from_outside_of_any_loop_is_written_at_once(tmp_path: Path) -> None:
    """Where no timer can ring, nothing waits for one."""
    events = JsonlEvents(tmp_path / "events.jsonl", AsyncioRunner())
    events.emit("alone")
    assert [event["kind"] for event in lines(tmp_path / "events.jsonl")] == ["alone"]
    events.close()


def test_a_list_keeps_events_for_tests() -> None:
    """Kind, episode and facts, in order."""
    events = ListEvents()
    events.emit("a")
    events.emit("b", EPISODE, x=1)
    assert events.kinds() == ["a", "b"]
    assert events.events[1] == ("b", EPISODE, {"x": 1})
