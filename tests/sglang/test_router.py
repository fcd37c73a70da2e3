"""A router that forwards to several workers: aborts, weights and health go to the workers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import aiohttp
import pytest
from aiohttp import web
from support import MODEL, VOCAB, Sink, expected, request

from agentflow.engine.fake_sglang import FakeOptions, FakeSglang
from agentflow.engine.sglang import PauseMode, SglangConfig, SglangEngine
from agentflow.errors import EngineDied, GenerationAborted

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Router:
    """Forwards generations in turn, knows its workers, and refuses everything else."""

    def __init__(self, workers: list[FakeSglang]) -> None:
        self.workers = workers
        self.calls: list[str] = []
        self._turn = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Listen; gives the url."""
        app = web.Application()
        app.router.add_post("/generate", self._generate)
        app.router.add_get("/workers", self._workers)
        app.router.add_route("*", "/{path:.*}", self._other)
        runner = web.AppRunner(app, shutdown_timeout=0.0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with aiohttp.ClientSession() as self._session:
            try:
                yield f"http://127.0.0.1:{runner.addresses[0][1]}"
            finally:
                await runner.cleanup()

    async def _workers(self, _request: web.Request) -> web.Response:
        return web.json_response({"workers": [{"url": w.url} for w in self.workers]})

    async def _other(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        return web.Response(status=404)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        worker = self.workers[self._turn % len(self.workers)]
        self._turn += 1
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        async with self._session.post(
            f"{worker.url}/generate", data=await request.read()
        ) as forwarded:
            await answer.prepare(request)
            async for part in forwarded.content.iter_any():
                await answer.write(part)
        return answer


@asynccontextmanager
async def routed() -> AsyncIterator[tuple[Router, SglangEngine]]:
    """Start two workers, a router in front of them and an engine on it."""
    options = FakeOptions(model=MODEL, step_s=0.004)
    async with FakeSglang(options) as one, FakeSglang(options) as two:
        router = Router([one, two])
        async with (
            router.serving() as url,
            SglangEngine(SglangConfig(urls=(url,), vocab_size=VOCAB)) as engine,
        ):
            yield router, engine


async def aborted(engine: SglangEngine, n: int, sink: Sink) -> Exception | None:
    """Generate at length; how it failed."""
    try:
        await engine.generate(request(n, max_new_tokens=400), sink)
    except (GenerationAborted, EngineDied) as error:
        return error
    return None


async def test_an_abort_reaches_the_worker_that_has_the_request() -> None:
    """And no other request: each of several on both workers ends by its own abort alone."""
    async with routed() as (router, engine):
        sinks = [Sink() for _ in range(6)]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(aborted(engine, n, s)) for n, s in enumerate(sinks)]
            for sink in sinks:
                await sink.reached(1)
            assert [len(w.scheduler.running) for w in router.workers] == [3, 3]
            for n, task in enumerate(tasks):
                await engine.abort(request(n).rid)
                await asyncio.wait([task])
                assert isinstance(task.result(), GenerationAborted)
                assert not any(later.done() for later in tasks[n + 1 :])
        assert all(sink.ids == expected(len(sink.ids)) for sink in sinks)
        assert not any(w.scheduler.running for w in router.workers)
        assert router.calls == []


async def test_a_worker_that_is_gone_does_not_keep_aborts_from_the_others() -> None:
    """Its own generation has died; the other's is aborted."""
    async with routed() as (router, engine):
        sinks = [Sink(), Sink()]
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(aborted(engine, n, s)) for n, s in enumerate(sinks)]
            for sink in sinks:
                await sink.reached(1)
            lost = next(n for n in (0, 1) if router.workers[0].scheduler.live(request(n).rid))
            await router.workers[0].die()
            await asyncio.wait([tasks[lost]])
            await engine.abort(request(1 - lost).rid)
        assert isinstance(tasks[lost].result(), EngineDied)
        assert isinstance(tasks[1 - lost].result(), GenerationAborted)
        assert all(sink.ids == expected(len(sink.ids)) for sink in sinks)


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_weights_and_loads_are_the_workers(mode: PauseMode) -> None:
    """A sync through a router updates all that stand behind it."""
    async with routed() as (router, engine):
        async with engine.paused(mode):
            await engine.update_weights_from_disk("/weights/1", version=1)
        assert [w.scheduler.version for w in router.workers] == ["1", "1"]
        assert [load.url for load in await engine.loads()] == [w.url for w in router.workers]
        for n in range(2):
            sink = Sink()
            await engine.generate(request(n), sink)
            assert sink.ids == expected(32, version="1")
            assert set(sink.versions) == {1}
        assert router.calls == []
