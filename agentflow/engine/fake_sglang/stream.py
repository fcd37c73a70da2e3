"""Stream: one /generate answer of a FakeSglang, event by event, with its faults."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from agentflow.engine.fake_sglang import wire

if TYPE_CHECKING:
    from agentflow.engine.fake_sglang.scheduler import FakeRequest
    from agentflow.engine.fake_sglang.server import FakeSglang

_DONE = b"data: [DONE]\n\n"


class Stream:
    """Answers one request."""

    def __init__(self, server: FakeSglang, body: dict[str, Any]) -> None:
        self._server = server
        self._faults = server.faults
        self._body = body
        self._sent = 0

    async def answer(self, http: web.Request) -> web.StreamResponse:
        """Write the whole answer."""
        if self._faults.first_byte_delay_s:
            await asyncio.sleep(self._faults.first_byte_delay_s)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        refusal = self._server.refusal(self._body)
        request = None if refusal else self._server.submit(self._body)
        if request is None:
            version = self._server.scheduler.version
            full = wire.refused_event(self._body["rid"], wire.QUEUE_FULL, version=version)
            await response.prepare(http)
            await response.write(_framed(refusal or full) + _DONE)
            return response
        waiter = self._server.waiter()
        try:
            await self._follow(http, response, request, waiter)
        except ConnectionResetError:
            self._server.scheduler.drop(request)
        finally:
            self._server.leave(waiter)
        return response

    async def _follow(
        self,
        http: web.Request,
        response: web.StreamResponse,
        request: FakeRequest,
        waiter: asyncio.Event,
    ) -> None:
        last_sent = False
        while not last_sent:
            await self._news(http, request, waiter)
            if not response.prepared:
                await response.prepare(http)
            last_sent = request.finished
            event = _framed(self._event(request))
            self._sent = len(request.output)
            if await self._misbehave(http, response, event):
                return
            await response.write(event * (2 if self._faults.duplicate_events else 1))
        await response.write(_DONE)

    async def _news(self, http: web.Request, request: FakeRequest, waiter: asyncio.Event) -> None:
        """Wait for tokens or the end; a client that went away is noticed here."""
        while True:
            if self._server.dead or http.transport is None or http.transport.is_closing():
                raise ConnectionResetError
            if not self._silent() and (request.finished or len(request.output) > self._sent):
                return
            waiter.clear()
            await waiter.wait()

    def _silent(self) -> bool:
        limit = self._faults.silent_after_tokens
        return limit is not None and self._sent >= limit

    def _event(self, request: FakeRequest) -> dict[str, Any]:
        options = self._server.options
        start = self._sent if options.incremental else 0
        text = options.model.text(request.output[start:])
        return wire.event(
            request,
            sent=start,
            text=text,
            version=self._server.scheduler.version,
            incremental=options.incremental,
        )

    async def _misbehave(
        self, http: web.Request, response: web.StreamResponse, event: bytes
    ) -> bool:
        """Commit the fault that is due; True when the stream is over by it."""
        faults, sent = self._faults, self._sent
        if faults.takes_at("cut_after_tokens", sent):
            await response.write(event[: len(event) // 2])
            assert http.transport is not None  # it was just written to
            http.transport.abort()
            raise ConnectionResetError
        if faults.takes_at("garbage_after_tokens", sent):
            await response.write(b'data: {"text": \n\n')
            return True
        return faults.takes_at("end_after_tokens", sent)


def _framed(event: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(event) + b"\n\n"
