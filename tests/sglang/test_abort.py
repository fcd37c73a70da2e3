"""Aborts: of exactly one request, also when they come early, late, or are lost on the way."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from support import Sink, expected, pair, request, until

from agentflow.engine.sglang import Deadlines, PauseMode
from agentflow.errors import EngineDied, GenerationAborted

if TYPE_CHECKING:
    from agentflow.engine.sglang import SglangEngine


async def aborted(engine: SglangEngine, n: int, sink: Sink) -> None:
    """Run request n and expect an abort."""
    with pytest.raises(GenerationAborted):
        await engine.generate(request(n, max_new_tokens=300), sink)


async def test_an_abort_that_the_server_lost_is_repeated() -> None:
    """One that overtakes its request is ignored by the server; the next one is not."""
    async with pair(step_s=0.005) as (server, engine):
        server.faults.lost_aborts = 2
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(aborted(engine, 0, sink))
            await sink.reached(1)
            await engine.abort(request(0).rid)
        assert server.calls.count("/abort_request") >= 3
        assert sink.ids == expected(len(sink.ids))


async def test_an_abort_in_the_same_instant_as_its_request() -> None:
    """Even before the request has a connection, the abort counts."""
    async with pair() as (server, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(aborted(engine, 0, sink))
            await asyncio.sleep(0)
            await engine.abort(request(0).rid)
        assert sink.ids == []
        assert server.scheduler.running == []


async def test_an_abort_before_the_first_byte() -> None:
    """A request that the server has not begun to answer ends too, and nothing is lost."""
    async with pair(step_s=0.005) as (server, engine):
        await engine.info()
        server.faults.first_byte_delay_s = 0.15
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(aborted(engine, 0, sink))
            await until(lambda: bool(server.bodies))
            await engine.abort(request(0).rid)
        assert sink.ids == expected(len(sink.ids))


async def test_an_abort_in_the_queue() -> None:
    """A queued request ends without a token, and its rid is free on the server."""
    async with pair(slots=1, step_s=0.005) as (server, engine):
        first, second = Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(engine.generate(request(0, max_new_tokens=60), first))
            await first.reached(1)
            group.create_task(aborted(engine, 1, second))
            await until(lambda: bool(server.scheduler.waiting))
            await engine.abort(request(1).rid)
        assert second.ids == []
        assert first.ids == expected(60)


async def test_an_abort_that_is_never_confirmed_is_an_error() -> None:
    """At its deadline the request is given up: assumed dead is not confirmed."""
    async with pair(step_s=0.005, deadlines=Deadlines(abort_s=0.2)) as (server, engine):
        server.faults.lost_aborts = 1000
        sink = Sink()
        with pytest.raises(EngineDied, match=r"still running .* after its abort"):
            async with asyncio.timeout(20):
                await _abort_at_first_token(engine, sink)
        assert sink.ids == expected(len(sink.ids))


async def _abort_at_first_token(engine: SglangEngine, sink: Sink) -> None:
    failure: EngineDied | None = None
    async with asyncio.TaskGroup() as group:
        group.create_task(_abort_when(engine, sink, 1))
        try:
            await engine.generate(request(0, max_new_tokens=3000), sink)
        except EngineDied as error:
            failure = error
    if failure is not None:
        raise failure


async def _abort_when(engine: SglangEngine, sink: Sink, tokens: int) -> None:
    await sink.reached(tokens)
    await engine.abort(request(0).rid)


async def test_an_abort_while_paused_in_place_waits_without_a_deadline() -> None:
    """The server ends it after resuming; the abort's deadline stands still until then."""
    limits = Deadlines(abort_s=0.15, between_tokens_s=0.15)
    async with pair(step_s=0.005, deadlines=limits) as (_, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(aborted(engine, 0, sink))
            await sink.reached(1)
            async with engine.paused(PauseMode.IN_PLACE):
                await engine.abort(request(0).rid)
                await asyncio.wait([task], timeout=0.4)
                assert not task.done()
        assert sink.ids == expected(len(sink.ids))


async def test_an_unasked_abort_is_an_abort() -> None:
    """Somebody else may abort everything; the tokens stay and the turn can go on."""
    async with pair(step_s=0.005) as (server, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            group.create_task(aborted(engine, 0, sink))
            await sink.reached(2)
            server.scheduler.abort_all()
        assert sink.ids == expected(len(sink.ids))
