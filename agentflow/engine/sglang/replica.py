"""Replica: one server's generations, from request to the one end of each.

Owns connections and the confirmation of aborts; whether a request is sent again is `dispatch`'s.
Invariant: every request that was sent has ended, or its connection is closed, when `generate`
returns.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from agentflow.engine.sglang.body import encode
from agentflow.engine.sglang.call import Call
from agentflow.engine.sglang.http1 import Pool, PoolClosed
from agentflow.engine.sglang.tokens import TokenStream
from agentflow.engine.sglang.versions import UNSET
from agentflow.errors import (
    EngineAdminFailed,
    EngineDied,
    EngineOverloaded,
    EngineUnreachable,
)

if TYPE_CHECKING:
    from agentflow.engine.sglang.admin import AdminClient
    from agentflow.engine.sglang.clock import PausableClock
    from agentflow.engine.sglang.config import SglangConfig
    from agentflow.engine.sglang.flight import Flight
    from agentflow.engine.sglang.http1 import Address, Connection
    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo

log = logging.getLogger(__name__)

_ABORT_FIRST_S = 0.05
"""An abort that overtook its request is repeated, soon at first: the request is just behind."""
_ABORT_MAX_S = 1.0


class Replica:
    """One SGLang server, or the router in front of several."""

    def __init__(
        self,
        *,
        address: Address,
        admin: AdminClient,
        config: SglangConfig,
        clock: PausableClock,
    ) -> None:
        self.admin = admin
        self.abort_targets = [admin]
        """Who is told of an abort: the server itself, or every worker behind a router."""
        self.info: ModelInfo | None = None
        """What its servers are; None until the fleet has connected."""
        self.version = UNSET
        """The weight version it reported last, in its own words."""
        self._config = config
        self._clock = clock
        self._pool = Pool(address, connect_s=config.deadlines.connect_s)
        self._head = _request_head(address, config.api_key)
        self.in_flight = 0
        """Generations that have not ended."""

    @property
    def url(self) -> str:
        """Where it is."""
        return self.admin.url

    async def generate(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight
    ) -> GenerationResult:
        """Send one request, checked already, once, and see it to its end."""
        self.in_flight += 1
        try:
            return await self._attempt(request, sink, flight)
        finally:
            self.in_flight -= 1

    async def close(self) -> None:
        """Drop connections; what is in flight ends with EngineDied."""
        await self._pool.close()
        await self.admin.close()

    def gauges(self) -> dict[str, int]:
        """Generations in flight and sockets."""
        return {"in_flight": self.in_flight, **self._pool.gauges()}

    # --- one attempt --------------------------------------------------------------------------

    async def _attempt(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight
    ) -> GenerationResult:
        flight.check()
        connection = await self._connect()
        if flight.abort_asked:
            self._pool.take_back(connection, reusable=True)
            flight.check()
        tokens = TokenStream(sink, version=self.version)
        call = Call(tokens=tokens, clock=self._clock, deadlines=self._config.deadlines)
        flight.wake = call.notice
        try:
            connection.send(self._message(request), call)  # kept nowhere: it may be a megabyte
            return await self._end_of(call, flight)
        except EngineOverloaded as error:
            if tokens.seen:
                raise EngineDied(f"shed after {tokens.seen} tokens: {error}") from error
            raise
        finally:
            flight.wake = None
            call.close()
            if not call.clean:
                connection.drop()
            tokens.flush()
            if tokens.end is not None:
                self.version = tokens.reported

    def _message(self, request: GenerationRequest) -> list[bytes]:
        body = encode(request, stream_interval=self._config.stream_interval)
        return [self._head % len(body), body]

    async def _connect(self) -> Connection:
        try:
            return await self._pool.acquire()
        except PoolClosed:
            raise EngineDied("the engine is closed") from None
        except TimeoutError:
            limit = self._config.deadlines.connect_s
            raise EngineUnreachable(f"{self.url}: no connection in {limit:g} s") from None
        except OSError as error:
            raise EngineUnreachable(f"{self.url}: {error}") from error

    async def _end_of(self, call: Call, flight: Flight) -> GenerationResult:
        await call.attention()
        if not call.ended:
            async with asyncio.TaskGroup() as group:
                aborting = group.create_task(self._abort_until_ended(call, flight.rid))
                await call.settled()
                aborting.cancel()
        return call.result()

    async def _abort_until_ended(self, call: Call, rid: str) -> None:
        """Repeat the abort: the server loses one that comes before its request."""
        limit = self._config.deadlines.abort_s
        asked_at, wait_s = self._clock.now(), _ABORT_FIRST_S
        while True:
            waited = self._clock.now() - asked_at
            if waited >= limit:
                call.fail(EngineDied(f"still running {waited:.1f} s after its abort"))
                return
            await self._send_abort(rid, timeout_s=max(limit - waited, _ABORT_FIRST_S))
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _ABORT_MAX_S)

    async def _send_abort(self, rid: str, *, timeout_s: float) -> None:
        async with asyncio.TaskGroup() as group:
            for target in self.abort_targets:
                group.create_task(_tell(target, rid, timeout_s))


async def _tell(target: AdminClient, rid: str, timeout_s: float) -> None:
    """Send one abort; whether it worked shows in the request's own end."""
    try:
        await target.text("POST", "/abort_request", {"rid": rid}, timeout_s=timeout_s)
    except EngineAdminFailed as error:
        log.warning("abort of %s: %s", rid, error)


def _request_head(address: Address, api_key: str | None) -> bytes:
    """Everything but the length, which `%` puts in."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [
        f"POST {address.path}/generate HTTP/1.1",
        f"Host: {host}:{address.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        *([f"Authorization: Bearer {api_key}"] if api_key else []),
    ]
    fixed = "\r\n".join(lines).replace("%", "%%")
    return f"{fixed}\r\nContent-Length: %d\r\n\r\n".encode()
