"""Fleets under attack: full queues, replicas that are gone, hundreds of aborts at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support import VOCAB, Sink, expected, fleet, pair, request, until

from agentflow.engine.fake_sglang import FakeModel
from agentflow.engine.sglang import Deadlines, PauseMode
from agentflow.errors import (
    EngineAdminFailed,
    EngineDied,
    EngineOverloaded,
    EngineUnreachable,
    GenerationAborted,
)
from executors.runs.logs import says_something

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.engine.sglang import SglangEngine

MANY = 300


async def _end_of(engine: SglangEngine, n: int, sink: Sink, tokens: int = 32) -> Exception | None:
    try:
        await engine.generate(request(n, max_new_tokens=tokens), sink)
    except (EngineDied, EngineUnreachable, GenerationAborted) as error:
        return error
    return None


async def test_a_full_queue_at_one_replica_is_the_others_work() -> None:
    """No generation fails or waits for a replica that sheds while another one has room."""
    async with fleet(2) as (servers, engine):
        servers[0].faults.overloaded = 100_000
        sinks = [Sink() for _ in range(20)]
        ends = await asyncio.gather(*(_end_of(engine, n, s) for n, s in enumerate(sinks)))
        assert ends == [None] * 20
        assert all(sink.ids == expected(32) for sink in sinks)
        assert len(servers[1].bodies) == 20
        assert len(servers[0].bodies) < 20  # asked at most once each


async def test_a_storm_of_full_queues_is_sat_out(caplog: pytest.LogCaptureFixture) -> None:
    """Many more turns away than four: what waits for a place gets one, and one line tells of it."""
    async with fleet(2) as (servers, engine):
        for server in servers:
            server.faults.overloaded = 40
        sinks = [Sink() for _ in range(20)]
        ends = await asyncio.gather(*(_end_of(engine, n, s) for n, s in enumerate(sinks)))
        assert ends == [None] * 20
        assert all(sink.ids == expected(32) for sink in sinks)
        assert sum(len(server.bodies) for server in servers) == 100
    told = [record.message for record in caplog.records if says_something(record)]
    assert len(told) == 1
    assert "queue is full" in told[0]


@pytest.mark.slow
async def test_a_full_queue_is_waited_for_while_paused() -> None:
    """An update that takes longer than the first token may does not fail what found no place."""
    async with pair(deadlines=Deadlines(first_token_s=2.0)) as (server, engine):
        server.faults.overloaded = 100_000
        sinks = [Sink() for _ in range(4)]
        async with asyncio.TaskGroup() as group, engine.paused(PauseMode.RETRACT):
            tasks = [group.create_task(_end_of(engine, n, s)) for n, s in enumerate(sinks)]
            await until(lambda: len(server.bodies) >= 24)  # 2.5 s: tried again and again
            assert not any(task.done() for task in tasks)
            server.faults.overloaded = 0
        assert [task.result() for task in tasks] == [None] * 4


async def test_an_abort_reaches_a_request_that_found_no_place() -> None:
    """Between two attempts nothing runs anywhere: the wish is granted on this side."""
    async with pair() as (server, engine):
        server.faults.overloaded = 100_000
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_end_of(engine, 0, sink))
            await until(lambda: len(server.bodies) >= 2)
            await engine.abort(request(0).rid)
        assert isinstance(task.result(), GenerationAborted)
        assert "/abort_request" not in server.calls


async def test_a_replica_that_is_gone_gets_no_work() -> None:
    """Idle because it is dead, it does not draw every generation to itself."""
    async with fleet(3) as (servers, engine):
        await servers[0].die()
        for n in range(30):
            sink = Sink()
            assert await _end_of(engine, n, sink) is None
            assert sink.ids == expected(32)


@pytest.mark.slow
async def test_when_all_are_gone_each_generation_says_so() -> None:
    """A typed error that says that the request never ran."""
    async with fleet(2) as (servers, engine):
        for server in servers:
            await server.die()
        error = await _end_of(engine, 0, Sink())
        assert isinstance(error, EngineUnreachable)
        assert not isinstance(error, EngineOverloaded)


@pytest.mark.slow
async def test_hundreds_of_aborts_at_once() -> None:
    """Each generation ends by its own abort with its own tokens, and no socket is left over."""
    endless = FakeModel(vocab_size=VOCAB, eos_id=-1)
    async with fleet(2, model=endless, slots=MANY, step_s=0.01) as (servers, engine):
        sinks = [Sink() for _ in range(MANY)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_end_of(engine, n, s, 4000)) for n, s in enumerate(sinks)]
            for sink in sinks:
                await sink.reached(1)
            for n in range(1, MANY):
                await engine.abort(request(n).rid)
            await asyncio.wait(tasks[1:])
            assert not tasks[0].done()
            await engine.abort(request(0).rid)
        assert all(isinstance(task.result(), GenerationAborted) for task in tasks)
        assert all(sink.ids == expected(len(sink.ids)) for sink in sinks)
        assert not any(s.scheduler.running or s.scheduler.waiting for s in servers)
        assert engine.gauges()["in_flight"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("mode", [PauseMode.ABORT, PauseMode.RETRACT, PauseMode.IN_PLACE])
@pytest.mark.parametrize("step", ["pause", "update", "flush", "continue"])
async def test_a_replica_that_dies_in_mid_sync(mode: PauseMode, step: str) -> None:
    """The failure names it, its generations end with their tokens, the others go on."""
    async with fleet(2, step_s=0.004) as (servers, engine):
        sinks = [Sink(), Sink()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_end_of(engine, n, s, 40)) for n, s in enumerate(sinks)]
            for sink in sinks:
                await sink.reached(2)
            with pytest.raises(EngineAdminFailed, match=servers[1].url):
                await _sync(engine, mode, step, servers[1].die)
        assert servers[0].scheduler.pause_mode is None
        ends = [task.result() for task in tasks]
        assert isinstance(ends[1], (EngineDied, GenerationAborted))
        assert isinstance(ends[0], GenerationAborted) or len(sinks[0].ids) == 40
        again = Sink()
        assert await _end_of(engine, 2, again) is None
        assert len(again.ids) == 32


async def _sync(
    engine: SglangEngine, mode: PauseMode, step: str, die: Callable[[], Awaitable[None]]
) -> None:
    """Update the weights; somebody dies right before `step`."""
    if step == "pause":
        await die()
    async with engine.paused(mode):
        if step == "update":
            await die()
        await engine.update_weights_from_disk("/weights/1", version=1)
        if step == "flush":
            await die()
        if mode is not PauseMode.IN_PLACE or step == "flush":
            await engine.flush()
        if step == "continue":
            await die()
