"""Generations against a server that misbehaves: what was received stays, what failed says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support import PROMPT, Sink, expected, pair, request, until

from agentflow.engine.fake_sglang import FakeOptions, FakeSglang
from agentflow.engine.rids import RidFactory
from agentflow.engine.sglang import Deadlines, SglangConfig, SglangEngine
from agentflow.engine.token_record import TokenRecord
from agentflow.engine.turns import EngineAccess, TurnModel
from agentflow.errors import (
    ConfigError,
    ContextFull,
    EngineDied,
    EngineOverloaded,
    EngineRejected,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.types import EpisodeId, FinishReason, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Message

QUICK = Deadlines(first_token_s=0.2, between_tokens_s=0.2, abort_s=0.3, admin_s=2.0)


async def test_facts_of_the_end_are_told() -> None:
    """Finish reason, match, cached tokens and retractions come from the last event."""
    async with pair() as (_, engine):
        result = await engine.generate(request(max_new_tokens=5), Sink())
        assert result.finish is FinishReason.LENGTH
        assert result.cached_tokens == len(PROMPT) - 1
        assert result.retractions == 0


async def test_a_stop_string_is_matched_and_kept() -> None:
    """The token that completes a stop string is the last one, and the string is named."""
    async with pair() as (server, engine):
        text = server.options.model.text(expected(12))
        sink = Sink()
        result = await engine.generate(request(stop=(text[9:12],)), sink)
        assert (result.finish, result.matched) == (FinishReason.STOP, text[9:12])
        assert sink.ids == expected(12)


async def test_duplicate_events_add_no_token() -> None:
    """A proxy that repeats chunks does no harm."""
    async with pair() as (server, engine):
        server.faults.duplicate_events = True
        sink = Sink()
        await engine.generate(request(), sink)
        assert sink.ids == expected(32)


@pytest.mark.parametrize("incremental", [True, False])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut_after_tokens", r"broke after \d+ tokens and part of an event"),
        ("garbage_after_tokens", "are not SGLang's"),
        ("end_after_tokens", "without a finish reason"),
        ("silent_after_tokens", r"silent for .* after 7 tokens"),
    ],
)
async def test_a_broken_stream_keeps_its_tokens(
    fault: str, message: str, *, incremental: bool
) -> None:
    """Whatever breaks after 7 tokens, those are in the sink, and the engine works on."""
    async with pair(deadlines=QUICK, incremental=incremental) as (server, engine):
        setattr(server.faults, fault, 7)
        sink = Sink()
        with pytest.raises(EngineDied, match=message):
            await engine.generate(request(0), sink)
        assert len(sink.ids) in {6, 7}
        assert sink.ids == expected(len(sink.ids))
        server.faults.silent_after_tokens = None
        again = Sink()
        await engine.generate(request(1), again)
        assert again.ids == expected(32)


async def test_silence_before_the_first_token_has_its_own_deadline() -> None:
    """A server that accepts a request and says nothing is given up."""
    async with pair(deadlines=QUICK) as (server, engine):
        server.faults.silent_after_tokens = 0
        with pytest.raises(EngineDied, match=r"silent for .* before the first token"):
            await engine.generate(request(), Sink())


async def test_a_server_dies_at_once_whatever_it_answers() -> None:
    """One that is far from its answer as well."""
    async with pair() as (server, engine), asyncio.timeout(20):
        server.faults.first_byte_delay_s = 1000.0
        task = asyncio.create_task(engine.generate(request(), Sink()))
        await until(lambda: bool(server.bodies))
        await server.die()
        with pytest.raises(EngineDied):
            await task


async def test_a_dying_server_ends_its_generations() -> None:
    """Death in mid-generation is EngineDied with the tokens kept, afterwards EngineUnreachable."""
    async with pair(step_s=0.005) as (server, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            failed = group.create_task(_failure(engine, sink))
            await sink.reached(3)
            await server.die()
        assert isinstance(failed.result(), EngineDied)
        assert sink.ids == expected(len(sink.ids))
        with pytest.raises(EngineUnreachable):
            await engine.generate(request(1), Sink())


async def _failure(engine: SglangEngine, sink: Sink, n: int = 0) -> BaseException | None:
    try:
        await engine.generate(request(n, max_new_tokens=200), sink)
    except (EngineDied, GenerationAborted, EngineRejected) as error:
        return error
    return None


async def test_a_full_queue_is_tried_again() -> None:
    """503 means that the request does not run: it is sent again, under the one policy."""
    async with pair() as (server, engine):
        server.faults.overloaded = 2
        sink = Sink()
        await engine.generate(request(), sink)
        assert sink.ids == expected(32)
        assert len(server.bodies) == 3


async def test_a_queue_that_stays_full_is_an_error() -> None:
    """At the deadline of the first token, where a place in the queue would be given up as well."""
    async with pair(deadlines=QUICK) as (server, engine):
        server.faults.overloaded = 1000
        with pytest.raises(EngineOverloaded, match="queue is full"):
            await engine.generate(request(), Sink())


async def test_an_internal_error_is_not_tried_again() -> None:
    """HTTP 500 may have come from a request that runs: once is all it is sent."""
    async with pair() as (server, engine):
        server.faults.broken_requests = 1
        with pytest.raises(EngineDied, match="HTTP 500: Internal Server Error"):
            await engine.generate(request(), Sink())
        assert len(server.bodies) == 1


async def test_a_priority_that_the_server_ignores_is_named() -> None:
    """The answer looks like a full queue; trying again would never help."""
    async with pair(priority=False) as (server, engine):
        with pytest.raises(EngineRejected, match="--enable-priority-scheduling"):
            await engine.generate(request(priority=5), Sink())
        assert len(server.bodies) == 1


@pytest.mark.parametrize("on", [True, False])
async def test_a_turn_has_a_priority_only_where_the_server_orders_by_it(*, on: bool) -> None:
    """The server says so once; one that does not would refuse the request."""
    async with pair(priority=on) as (server, engine):
        assert (await engine.info()).priorities is on
        model = TurnModel(
            episode=EpisodeId(uid="u"),
            record=TokenRecord(),
            sampling=SamplingParams(max_new_tokens=2),
            access=EngineAccess(engine=engine, renderer=Numbers(), rids=RidFactory()),
        )
        model.priority = 1
        await model.generate([{"role": "user", "content": "3 4"}])
        assert [body.get("priority") for body in server.bodies] == [1 if on else None]


class Numbers:
    """Renders ids that are written out."""

    end_of_turn_ids = ()

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Read them."""
        return [int(i) for m in messages for i in str(m["content"]).split()]

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Read them."""
        return self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Write them."""
        return " ".join(map(str, ids))


async def test_a_prompt_that_fills_the_context_is_not_sent() -> None:
    """ContextFull is the policy's own length, found before the server is asked."""
    async with pair() as (server, engine):
        limit = (await engine.info()).context_length
        with pytest.raises(ContextFull, match=f"context of {limit}"):
            await engine.generate(request(prompt=[5] * limit, max_new_tokens=1), Sink())
        assert server.bodies == []


async def test_the_key_is_sent_and_a_wrong_one_is_named() -> None:
    """Generations and other calls carry the key; without it the server's answer is shown."""
    async with pair(api_key="s3cret") as (server, engine):
        await engine.generate(request(max_new_tokens=2), Sink())
        config = SglangConfig(urls=(server.url,), vocab_size=512, api_key="wrong")
        assert "wrong" not in repr(config)
        async with SglangEngine(config) as other:
            with pytest.raises(EngineUnreachable, match="HTTP 401: Unauthorized"):
                await other.info()


async def test_connections_are_reused() -> None:
    """Generations one after the other need one socket."""
    async with pair() as (_, engine):
        for n in range(5):
            await engine.generate(request(n, max_new_tokens=3), Sink())
        assert engine.gauges()["connections_open"] == 1


async def test_cancelling_closes_the_connection() -> None:
    """A server sees a cancelled generation by its closed socket, and others are not touched."""
    async with pair(step_s=0.005) as (server, engine):
        sink, other = Sink(), Sink()
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(engine.generate(request(1), other))
            task = group.create_task(engine.generate(request(0, max_new_tokens=500), sink))
            await sink.reached(2)
            task.cancel()
        assert kept.result().finish is FinishReason.LENGTH
        assert server.scheduler.running == []
        assert engine.gauges()["in_flight"] == 0


async def test_an_unknown_vocabulary_is_asked_for() -> None:
    """Where config.json is not at hand the number must be given: guessing kills servers."""
    async with (
        FakeSglang(FakeOptions()) as server,
        SglangEngine(SglangConfig(urls=(server.url,))) as engine,
    ):
        with pytest.raises(ConfigError, match="vocab_size: not given"):
            await engine.info()


@pytest.mark.parametrize(
    ("urls", "message"),
    [
        ((), "at least one server"),
        (("localhost:30000",), "'localhost:30000' must look like"),
        (("http://a:99999",), "'http://a:99999' must look like"),
        (("http://a:port",), "'http://a:port' must look like"),
        (("http://user:word@a:1",), "must look like"),
        (("http://a:1", "http://a:1"), "each server once"),
    ],
)
def test_bad_urls_are_named(urls: tuple[str, ...], message: str) -> None:
    """Configuration is checked where it is made."""
    with pytest.raises(ConfigError, match=message):
        SglangConfig(urls=urls)


@pytest.mark.parametrize("key", ["from-a-file\n", "schlüssel", " k"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    """And not shown."""
    with pytest.raises(ConfigError, match="api_key: must be printable ASCII") as refused:
        SglangConfig(urls=("http://a:1",), api_key=key)
    assert key not in str(refused.value)


async def test_ids_may_be_a_list() -> None:
    """It is checked and sent as an array would be."""
    async with pair() as (server, engine):
        made, sink = request(max_new_tokens=3), Sink()
        listed: Any = list(PROMPT)
        await engine.generate(replace(made, input_ids=listed), sink)
        assert sink.ids == expected(3)
        with pytest.raises(EngineRejected, match=r"input_ids\[1\]: 512 is not in"):
            await engine.generate(replace(made, input_ids=[1, 512]), Sink())  # type: ignore[arg-type]
        assert len(server.bodies) == 1


async def test_a_rid_that_could_be_the_beginning_of_another_is_refused() -> None:
    """An abort of one would be an abort of both."""
    async with pair(step_s=0.004) as (server, engine):
        sink = Sink()
        async with asyncio.TaskGroup() as group:
            running = group.create_task(engine.generate(request(), sink))
            await sink.reached(1)
            with pytest.raises(EngineRejected, match="must be as long as"):
                await engine.generate(replace(request(), rid=request().rid[:-1]), Sink())
        assert running.result().finish is FinishReason.LENGTH
        assert len(server.bodies) == 1


def test_bad_deadlines_are_named() -> None:
    """Zero seconds is no deadline."""
    with pytest.raises(ConfigError, match="first_token_s: 0"):
        replace(Deadlines(), first_token_s=0)
