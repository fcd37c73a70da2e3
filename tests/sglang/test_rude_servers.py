"""Servers that keep to no rule: each generation ends in time, with what came and a typed error."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from support import VOCAB, Sink, request
from test_sglang_events import block, event

from agentflow.engine.sglang import Deadlines, SglangConfig, SglangEngine
from agentflow.errors import (
    EngineAdminFailed,
    EngineDied,
    EngineOverloaded,
    EngineRejected,
    EngineUnreachable,
)
from agentflow.types import FinishReason, ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

INFO = ModelInfo(name="rude", vocab_size=VOCAB, context_length=4096)
LIMITS = Deadlines(first_token_s=0.3, between_tokens_s=0.3, abort_s=0.3, admin_s=0.3)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
FIRST = block(event([5], 1))
ODD_ABORT = block(event([], 0, reason={"type": "abort", "message": "gone", "status_code": "busy"}))
LAST = block(event([6], 2, reason={"type": "length", "length": 2}))


def chunk(data: bytes) -> bytes:
    """Frame one chunk."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@asynccontextmanager
async def rude(
    parts: Sequence[bytes],
    *,
    then: str = "hang",
    pings: bool = False,
    limits: Deadlines = LIMITS,
) -> AsyncIterator[SglangEngine]:
    """Answer every request with `parts`, then hang or close; gives an engine that is connected."""
    gone, idle = asyncio.Event(), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        idle.clear()
        await reader.readuntil(b"\r\n\r\n")
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0)
        while pings and not writer.transport.is_closing():
            writer.write(chunk(b": ping\n\n"))
            await asyncio.sleep(0.01)
        if then == "hang":
            await gone.wait()
        writer.transport.abort() if then == "reset" else writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        idle.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with (
        server,
        SglangEngine(SglangConfig(urls=(url,), vocab_size=VOCAB, deadlines=limits)) as engine,
    ):
        engine._info = INFO
        yield engine
        await engine.close()
        gone.set()
        await idle.wait()


async def fails(engine: SglangEngine, error: type[Exception], message: str) -> Sink:
    """Generate, and expect an error within its deadline."""
    sink = Sink()
    with pytest.raises(error, match=message):
        async with asyncio.timeout(20):
            await engine.generate(request(), sink)
    assert engine.gauges()["in_flight"] == 0
    return sink


async def test_a_header_that_never_ends_is_given_up() -> None:
    """A byte now and then is no token."""
    async with rude([bytes([byte]) for byte in CHUNKED[:20]]) as engine:
        await fails(engine, EngineDied, "silent for .* before the first token")


async def test_keep_alive_comments_are_no_tokens() -> None:
    """A proxy that pings for a server that is gone does not keep a generation alive."""
    async with rude([CHUNKED, chunk(FIRST)], pings=True) as engine:
        sink = await fails(engine, EngineDied, "silent for .* after 1 tokens")
        assert sink.ids == [5]


@pytest.mark.parametrize("then", ["close", "reset"])
async def test_a_cut_in_mid_chunk_keeps_what_came(then: str) -> None:
    """What was complete is in the sink."""
    async with rude([CHUNKED, chunk(FIRST), chunk(LAST)[:40]], then=then) as engine:
        sink = await fails(engine, EngineDied, "broke after 1 tokens and part of an event")
        assert sink.ids == [5]


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 422 Bad\r\n\r\n" + b'{"error":{"message":"no"}}', EngineRejected, "422: no"),
        (b"HTTP/1.1 503 No\r\nContent-Length: 4\r\n\r\nfull", EngineOverloaded, "HTTP 503: full"),
        (b"HTTP/1.1 429 No\r\nContent-Length: 4\r\n\r\nfull", EngineOverloaded, "HTTP 429: full"),
        (b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\n<a>", EngineDied, "HTTP 502: <a>"),
        (b"HTTP/1.1 307 T\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", EngineRejected, "307"),
        (b"HTTP/1.1 204 No\r\n\r\n", EngineRejected, "204"),
        (b"SSH-2.0-OpenSSH\r\n", EngineDied, "no HTTP/1.1 answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n" + b'{"error":"no"}', EngineDied, '"no"'),
        (CHUNKED + chunk(b"data: \x1f\x8b\n\n"), EngineDied, "are not SGLang's"),
        (CHUNKED + chunk(ODD_ABORT), EngineDied, "aborted with status 'busy': gone"),
        (b"HTTP/1.1 404 No\r\n\r\n" + b"<p>" * 100_000, EngineRejected, "404: <p><p>"),
    ],
    ids=["422", "503", "429", "502", "307", "204", "ssh", "200", "binary", "status", "long"],
)
async def test_other_answers_are_errors_that_say_so(
    answer: bytes, error: type[Exception], message: str
) -> None:
    """Whatever speaks at the other end, its words are in the error."""
    async with rude([answer], then="close") as engine:
        await fails(engine, error, message)


@pytest.mark.parametrize(
    ("answer", "error", "message"),
    [
        (b"HTTP/1.1 500 Bad\r\n\r\n" + b"x" * (1 << 17), EngineDied, "HTTP 500: xxx"),
        (CHUNKED + chunk(b"x" * (1 << 24)) * 5, EngineDied, "an event without an end"),
    ],
    ids=["error", "event"],
)
async def test_what_never_ends_is_not_kept(
    answer: bytes, error: type[Exception], message: str
) -> None:
    """A text or an event without an end costs no memory without bound, nor a whole deadline."""
    async with rude([answer], limits=Deadlines()) as engine:
        await fails(engine, error, message)


@pytest.mark.parametrize(
    "answer",
    [
        {"error": {"message": "too long", "code": 400}},
        {"error": "too long"},
        {"object": "error", "message": "too long", "code": 400},
    ],
    ids=["openai", "text", "object"],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_errors_of_every_shape_are_read(answer: dict[str, Any], *, streamed: bool) -> None:
    """As the answer itself, or as an event of a stream that began in good order."""
    body = json.dumps(answer).encode()
    head = b"HTTP/1.1 400 Bad\r\nContent-Length: %d\r\n\r\n" % len(body)
    parts = [CHUNKED, chunk(block(body))] if streamed else [head, body]
    async with rude(parts) as engine:
        await fails(engine, EngineRejected, "^HTTP 400: too long$")


@pytest.mark.parametrize("then", ["hang", "reset"])
async def test_after_the_last_event_nothing_matters(then: str) -> None:
    """A generation has ended with its finish reason, whatever the connection does then."""
    async with rude([CHUNKED, chunk(FIRST), chunk(LAST)], then=then) as engine:
        sink = Sink()
        async with asyncio.timeout(20):
            result = await engine.generate(request(), sink)
        assert (sink.ids, result.finish) == ([5, 6], FinishReason.LENGTH)


@pytest.mark.slow
async def test_a_host_that_does_not_answer_has_its_own_deadline() -> None:
    """No connection in time: the request never ran, and the error names the deadline."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        with socket.create_connection(address):  # the one that waits; nobody else gets in
            config = SglangConfig(
                urls=(f"http://127.0.0.1:{address[1]}",),
                vocab_size=VOCAB,
                deadlines=Deadlines(connect_s=0.2),
            )
            async with SglangEngine(config) as engine:
                engine._info = INFO
                await fails(engine, EngineUnreachable, r"no connection in 0\.2 s")
                with pytest.raises(EngineAdminFailed, match=r"no connection in 0\.2 s"):
                    await engine.loads()
