"""Whichever call of a weight sync fails, and however: raised, and nothing is left paused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support import Sink, expected, fleet, request, until

from agentflow.engine.sglang import Deadlines, PauseMode, SglangEngine
from agentflow.errors import EngineAdminFailed, GenerationAborted

if TYPE_CHECKING:
    from agentflow.engine.fake_sglang import FakeSglang

SHORT = Deadlines(admin_s=1.0, pause_s=1.0, update_s=1.0)
"""For calls that hang; also what a busy machine must manage to answer in."""
CALLS = ["/pause_generation", "/update_weights_from_disk", "/flush_cache", "/continue_generation"]
FAULTS = ["failing_calls", "lost_answers", "hanging_calls"]


async def sync(engine: SglangEngine, mode: PauseMode) -> None:
    """Update the weights; what is kept in place cannot be flushed, but fails all the same."""
    async with engine.paused(mode):
        await engine.update_weights_from_disk("/weights/1", version=1)
        await engine.flush()


async def run(engine: SglangEngine, n: int, sink: Sink) -> None:
    """Generate over aborts, as a turn does."""
    left, attempt = 60, 0
    while left:
        prompt = [*request().input_ids.tolist(), *sink.ids]
        try:
            await engine.generate(request(n + 100 * attempt, prompt, max_new_tokens=left), sink)
        except GenerationAborted:
            attempt += 1
        left = 60 - len(sink.ids)


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(PauseMode))
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_a_call_that_fails_is_raised_and_nothing_stays_paused(
    mode: PauseMode, call: str, fault: str
) -> None:
    """At one of two replicas, under running generations, which come to their ends."""
    deadlines = SHORT if fault == "hanging_calls" else Deadlines()
    async with fleet(2, step_s=0.002, deadlines=deadlines) as (servers, engine):
        sinks = [Sink(), Sink()]
        async with asyncio.TaskGroup() as group:
            for n, sink in enumerate(sinks):
                group.create_task(run(engine, n, sink))
            for sink in sinks:
                await sink.reached(2)
            getattr(servers[1].faults, fault)[call] = 1
            with pytest.raises(EngineAdminFailed, match=f"{servers[1].url}{call}"):
                await sync(engine, mode)
            if call == "/continue_generation":
                await engine.resume()  # what may still be paused is told; again is how to heal it
            check_resumed(servers)
        assert [len(sink.ids) for sink in sinks] == [60, 60]
        await sync_cleanly(engine, mode)
        check_resumed(servers)
        assert {s.scheduler.version for s in servers} == {"2"}
        late = Sink()
        await engine.generate(request(7), late)
        assert late.ids == expected(32, version="2")


async def sync_cleanly(engine: SglangEngine, mode: PauseMode) -> None:
    """Update with nothing running: the next sync finds nothing of the last one in its way."""
    async with engine.paused(mode):
        await engine.update_weights_from_disk("/weights/2", version=2)


def check_resumed(servers: list[FakeSglang]) -> None:
    """No server may be paused."""
    assert [server.scheduler.pause_mode for server in servers] == [None, None]


@pytest.mark.slow
@pytest.mark.parametrize("mode", list(PauseMode))
@pytest.mark.parametrize("call", CALLS)
async def test_a_sync_that_is_cancelled_leaves_nothing_paused(mode: PauseMode, call: str) -> None:
    """Whoever updates may be cancelled in the middle of any call."""
    async with fleet(2) as (servers, engine):
        servers[1].faults.hanging_calls[call] = 1
        async with asyncio.TaskGroup() as group:
            task = group.create_task(sync(engine, mode))
            await until(lambda: not servers[1].faults.hanging_calls[call])
            task.cancel()
        assert task.cancelled()
        if call == "/continue_generation":
            await engine.resume()
        check_resumed(servers)
        await sync_cleanly(engine, mode)
        sink = Sink()
        await engine.generate(request(), sink)
        assert sink.ids == expected(32, version="2")
