"""FakeSglang: an HTTP server that speaks SGLang's wire, well or, on demand, badly.

For fast tests and for demonstrations without a model. It listens on a free local port from entering
to leaving its `async with` block and decodes one token for each running request every `step_s`
seconds; what it does wrong stands in `faults`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from agentflow.engine.fake_sglang import wire
from agentflow.engine.fake_sglang.calls import AdminCalls
from agentflow.engine.fake_sglang.faults import Faults
from agentflow.engine.fake_sglang.model import FakeModel
from agentflow.engine.fake_sglang.scheduler import FakeRequest, FakeScheduler
from agentflow.engine.fake_sglang.stream import Stream

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from aiohttp.typedefs import Handler

_MAX_BODY = 1 << 28
_SHUTDOWN_S = 0.01
"""What is being answered is ended by then; 0 would be for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """How the server was started."""

    model: FakeModel = field(default_factory=FakeModel)
    slots: int = 8
    """`--max-running-requests`."""
    max_queued: int | None = None
    """`--max-queued-requests`."""
    kv_tokens: int = 65_536
    """KV memory: who finds no room waits, the newest is retracted where contexts outgrow it."""
    incremental: bool = True
    """`--incremental-streaming-output`."""
    priority: bool = True
    """`--enable-priority-scheduling`."""
    step_s: float | None = 0.0
    """Seconds between two tokens of a request; 0 as fast as the loop turns, None by `step` only."""
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    version: str = "default"
    workers: tuple[str, ...] | None = None
    """Urls to name under `/workers`, as a router does; None is no router."""


class FakeSglang:
    """One server; `async with FakeSglang() as server: server.url`."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.options = options or FakeOptions()
        self.faults = Faults()
        self.scheduler = FakeScheduler(
            self.options.model,
            slots=self.options.slots,
            kv_tokens=self.options.kv_tokens,
            max_queued=self.options.max_queued,
            version=self.options.version,
        )
        self.bodies: list[dict[str, Any]] = []
        """Every /generate body received."""
        self.calls: list[str] = []
        """Paths of all other calls, in order."""
        self.dead = False
        self._admin = AdminCalls(self)
        self._waiters: set[asyncio.Event] = set()
        self._tick: asyncio.TimerHandle | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self.options.tls else 'http'}://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._receive], client_max_size=_MAX_BODY)
        app.router.add_post("/generate", self._generate)
        self._admin.add_to(app.router)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=_SHUTDOWN_S)
        await self._runner.setup()
        self._site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.options.tls)
        await self._site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None:
        await self.die()

    async def die(self) -> None:
        """Break every connection and stop listening, as a killed process does. Idempotent."""
        await self._break()
        await self._runner.cleanup()

    async def _break(self) -> None:
        """Do all of that but wait for what is being answered, which may be what it dies of."""
        if self.dead:
            return
        self.dead = True
        await self._site.stop()
        if self._tick is not None:
            self._tick.cancel()
        assert self._runner.server is not None  # it was set up
        for connection in self._runner.server.connections:
            if connection.transport is not None:
                connection.transport.abort()
        self.changed()

    # --- decoding -----------------------------------------------------------------------------

    def changed(self) -> None:
        """Wake everybody who waits for the scheduler, and decode on where there is work."""
        for waiter in self._waiters:
            waiter.set()
        step_s = self.options.step_s
        if self.scheduler.busy and self._tick is None and step_s is not None and not self.dead:
            self._tick = asyncio.get_running_loop().call_later(step_s, self.step)

    def step(self) -> None:
        """Decode one token for each running request."""
        self._tick = None
        self.scheduler.step()
        self.changed()

    def waiter(self) -> asyncio.Event:
        """Return an event that is set at every change, until `leave`."""
        event = asyncio.Event()
        self._waiters.add(event)
        return event

    def leave(self, event: asyncio.Event) -> None:
        """Set `event` no more."""
        self._waiters.discard(event)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds or the server is dead."""
        waiter = self.waiter()
        try:
            while not (condition() or self.dead):
                waiter.clear()
                await waiter.wait()
        finally:
            self.leave(waiter)

    # --- requests -----------------------------------------------------------------------------

    @web.middleware
    async def _receive(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.dead and request.transport is not None:  # it was connecting meanwhile
            request.transport.abort()
            raise ConnectionResetError
        key = self.options.api_key
        if key is not None and request.headers.get("Authorization") != f"Bearer {key}":
            return web.json_response({"error": "Unauthorized"}, status=401)
        if self.faults.takes_call("hanging_calls", request.path):
            await self.until(lambda: False)
        answer = await handler(request)
        if self.faults.takes_call("lost_answers", request.path) and request.transport is not None:
            request.transport.abort()
        return answer

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        if self.faults.takes("broken_requests"):
            return web.Response(status=500, text="Internal Server Error")
        model = self.options.model
        if not all(0 <= i < model.vocab_size for i in body["input_ids"]):
            await self._break()
            raise ConnectionResetError
        return await Stream(self, body).answer(request)

    def refusal(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """Return the one event of a request that is turned away, None when it is taken."""
        rid, version = body["rid"], self.scheduler.version
        tokens, limit = len(body["input_ids"]), self.options.model.context_length
        if tokens >= limit:
            return wire.error_event(wire.too_long(self.options.model, tokens))
        if self.scheduler.live(rid):
            return wire.error_event(f"Duplicate request ID detected: {rid}")
        if "priority" in body and not self.options.priority:
            return wire.refused_event(rid, wire.PRIORITY_OFF, version=version)
        if self.faults.takes("overloaded"):
            return wire.refused_event(rid, wire.QUEUE_FULL, version=version)
        return None

    def submit(self, body: dict[str, Any]) -> FakeRequest | None:
        """Queue a request; None when the queue is full."""
        request = FakeRequest(
            rid=body["rid"],
            prompt=body["input_ids"],
            params=body["sampling_params"],
            priority=body.get("priority", 0),
        )
        taken = self.scheduler.submit(request)
        self.changed()
        return request if taken else None
