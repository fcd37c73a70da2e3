"""The meter at an engine's door, beside the engine's own count."""

from __future__ import annotations

from support import Sink, pair, request

from executors.runs.token_meter import MeteredModel


async def test_what_the_engine_counts_beyond_the_meter_is_unseen() -> None:
    """What ran before, and what was received, is not; what somebody else let run is."""
    async with pair() as (_, engine):
        meter = MeteredModel(engine)
        await engine.generate(request(0), Sink())
        await meter.watch_engine()
        await meter.generate(request(1), Sink())
        assert await meter.unseen() == 0
        others = Sink()
        await engine.generate(request(2), others)
        assert await meter.unseen() == len(others.ids) > 0


async def test_an_engine_that_does_not_answer_tells_nothing() -> None:
    """The run goes on without its count."""
    async with pair() as (server, engine):
        meter = MeteredModel(engine)
        await meter.watch_engine()
        await server.die()
        assert await meter.unseen() is None
