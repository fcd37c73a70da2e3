"""close(), at any moment: what goes on ends with EngineDied, and no socket is left or opened."""

from __future__ import annotations

import asyncio

import pytest
from support import Sink, pair, request, until

from agentflow.engine.sglang import PauseMode, SglangEngine
from agentflow.errors import EngineAdminFailed, EngineDied


def sockets(engine: SglangEngine) -> int:
    """Return the open ones."""
    return engine.gauges()["connections_open"]


async def died(engine: SglangEngine) -> str:
    """Generate at length, and expect the end of the engine."""
    with pytest.raises(EngineDied) as end:
        await engine.generate(request(max_new_tokens=500), Sink())
    return str(end.value)


async def test_while_a_connection_is_being_opened() -> None:
    """It is closed when it is there, and nothing is sent over it."""
    async with pair() as (server, engine), asyncio.timeout(20):
        await engine.info()
        task = asyncio.create_task(died(engine))
        await until(lambda: engine.gauges()["in_flight"] == 1)
        assert sockets(engine) == 0
        await engine.close()
        assert await task == "the engine is closed"
        await until(lambda: sockets(engine) == 0)
        assert server.bodies == []


async def test_by_two_at_once() -> None:
    """Both wait until every socket is closed."""
    async with pair(step_s=0.004) as (server, engine), asyncio.timeout(20):
        task = asyncio.create_task(died(engine))
        await until(lambda: bool(server.bodies))
        await asyncio.gather(engine.close(), engine.close())
        assert sockets(engine) == 0
        assert "broke" in await task


async def test_while_a_full_queue_is_waited_for() -> None:
    """Nothing is tried any more."""
    async with pair() as (server, engine), asyncio.timeout(20):
        server.faults.overloaded = 1000
        task = asyncio.create_task(died(engine))
        await until(lambda: bool(server.bodies) and not engine.gauges()["in_flight"])
        asked = len(server.bodies)
        await engine.close()
        assert await task == "the engine is closed"
        assert len(server.bodies) == asked


async def test_while_a_drain_holds_generations_back() -> None:
    """They end, too."""
    async with pair() as (server, engine), asyncio.timeout(20):
        await engine.pause(PauseMode.DRAIN)
        task = asyncio.create_task(died(engine))
        await asyncio.sleep(0)
        await engine.close()
        assert await task == "the engine is closed"
        assert server.bodies == []


async def test_nothing_is_opened_again() -> None:
    """Calls of a closed engine say so, and leave no session that nobody closes."""
    async with pair() as (server, engine):
        await engine.info()
        await engine.close()
        asked = len(server.calls)
        with pytest.raises(EngineAdminFailed, match="/v1/loads: the engine is closed"):
            await engine.loads()
        assert len(server.calls) == asked
