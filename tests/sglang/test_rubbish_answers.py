"""Answers to calls about the engine that are none of SGLang's: one typed error that says so."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from aiohttp import web
from support import VOCAB

from agentflow.engine.sglang import PauseMode, SglangConfig, SglangEngine
from agentflow.errors import EngineAdminFailed, EngineUnreachable
from agentflow.types import ModelInfo

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

INFO = ModelInfo(name="m", vocab_size=VOCAB, context_length=4096)
RUBBISH = [
    b"",
    b"<html>login</html>",
    b"[]",
    b"null",
    b'"text"',
    b"{}",
    b'{"loads": [{}], "data": [], "success": "no"}',
    b'{"data": [{"max_model_len": "x"}], "served_model_name": "m", "weight_version": "default"}',
    b"\xff\xfe\x00",
    b"sglang:num_running_reqs{} many",
]


@asynccontextmanager
async def answering(body: bytes) -> AsyncIterator[SglangEngine]:
    """Answer everything with 200 and `body`, but say of `/workers` that there are none."""

    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(status=404 if request.path == "/workers" else 200, body=body)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    config = SglangConfig(urls=(f"http://127.0.0.1:{runner.addresses[0][1]}",), vocab_size=VOCAB)
    try:
        async with SglangEngine(config) as engine:
            yield engine
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("body", RUBBISH)
async def test_a_server_that_is_something_else_is_named_at_the_start(body: bytes) -> None:
    """Whatever it says of itself, connecting fails as for a server that is not there."""
    async with answering(body) as engine:
        with pytest.raises(EngineUnreachable, match="does not answer as SGLang"):
            await engine.info()


@pytest.mark.parametrize("body", RUBBISH)
@pytest.mark.parametrize("call", ["loads", "update_weights_from_disk", "init_weights_update_group"])
async def test_calls_about_the_engine_fail_in_one_way(call: str, body: bytes) -> None:
    """EngineAdminFailed names the server; no KeyError leaks out, and nothing counts as done."""
    arguments: dict[str, dict[str, Any]] = {
        "loads": {},
        "update_weights_from_disk": {"path": "w", "version": 1},
        "init_weights_update_group": {"address": "a", "port": 1, "world_size": 2},
    }
    async with answering(body) as engine:
        engine._info = INFO
        with pytest.raises(EngineAdminFailed, match=r"http://127\.0\.0\.1"):
            await getattr(engine, call)(**arguments[call])
        assert (await engine.info()).weight_version == 0


@pytest.mark.parametrize("body", RUBBISH[:-1])
async def test_text_without_metrics_has_none(body: bytes) -> None:
    """Servers without --enable-metrics answer with something, too."""
    async with answering(body) as engine:
        engine._info = INFO
        assert await engine.metrics() == [{}]


async def test_a_metric_that_is_no_number_is_an_error() -> None:
    """Its line is shown."""
    async with answering(RUBBISH[-1]) as engine:
        with pytest.raises(EngineAdminFailed, match=r"num_running_reqs.* many"):
            await engine.metrics()


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_a_server_that_agrees_to_everything_is_paused_and_resumed(mode: PauseMode) -> None:
    """Pauses are confirmed by the status alone: SGLang's own answers to them are mere words."""
    async with answering(b"ok") as engine:
        engine._info = INFO
        async with engine.paused(mode):
            pass
        async with engine.paused(mode):
            pass
