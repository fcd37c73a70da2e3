"""Call: one request in flight, from its first byte to its one end.

Receives what the connection reads and hands tokens to the sink. Invariants: it ends exactly once;
the sink never grows after that; an abort is a wish until the request's own end confirms it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.engine.sglang.answers import (
    error_for_event,
    error_for_status,
    error_message,
    result_of,
)
from agentflow.engine.sglang.events import EventBuffer
from agentflow.errors import AgentflowError, EngineDied

if TYPE_CHECKING:
    from agentflow.engine.sglang.clock import PausableClock
    from agentflow.engine.sglang.config import Deadlines
    from agentflow.engine.sglang.tokens import TokenStream
    from agentflow.types import GenerationResult

_OK = 200

_MAX_EVENT = 1 << 26
"""Bytes without an event's end; a cumulative one of a hundred thousand tokens has a tenth."""
_MAX_ERROR = 1 << 16
"""Bytes of an error's text; what follows is not worth waiting for."""


class Call:
    """One attempt to have one request answered; a `Receiver` of its connection."""

    def __init__(self, *, tokens: TokenStream, clock: PausableClock, deadlines: Deadlines) -> None:
        self.tokens = tokens
        self._clock = clock
        self._deadlines = deadlines
        self._events = EventBuffer()
        self._status = 0
        self._error_body = bytearray()
        loop = asyncio.get_running_loop()
        self._end: asyncio.Future[GenerationResult] = loop.create_future()
        self._attention: asyncio.Future[None] = loop.create_future()
        self._heard_at = clock.now()
        self._timer: asyncio.TimerHandle | None = None
        self._complete = False
        self._watch(self._limit())

    async def attention(self) -> None:
        """Wait for the end, or for `notice`."""
        await self._attention

    def notice(self) -> None:
        """Wake whoever waits for `attention`."""
        if not self._attention.done():
            self._attention.set_result(None)

    async def settled(self) -> None:
        """Wait for the end."""
        await asyncio.wait([self._end])

    def result(self) -> GenerationResult:
        """Return how it ended, or raise it."""
        return self._end.result()

    @property
    def ended(self) -> bool:
        """Whether the request has ended."""
        return self._end.done()

    @property
    def clean(self) -> bool:
        """Whether the answer is read, or about to be: the connection may serve another one."""
        return self._complete or self.tokens.end is not None

    def fail(self, error: Exception) -> None:
        """End it from this side."""
        if not self._end.done():
            self._end.set_exception(error)
            self._end.exception()  # an end that nobody waits for any more is no error
            self.notice()

    def close(self) -> None:
        """Take nothing more. Idempotent."""
        self._end.cancel()
        if self._timer is not None:
            self._timer.cancel()

    # --- Receiver -----------------------------------------------------------------------------

    def on_status(self, status: int) -> None:
        """Take the status of the answer."""
        self._status = status

    def on_body(self, pieces: list[bytes]) -> None:
        """Take bytes: events, or the text of an error."""
        if self._end.done():
            return
        if self._status != _OK:
            self._error_body += b"".join(pieces)
            if len(self._error_body) > _MAX_ERROR:
                self._refused()
            return
        events = self._events.feed(pieces)
        if not events:
            if self._events.pending > _MAX_EVENT:
                self.fail(EngineDied(f"an event without an end {self._where()}"))
            return
        seen = self.tokens.seen
        try:
            self.tokens.take(events)
            self._look_for_end()
        except AgentflowError as error:
            self.fail(error)
        if self.tokens.seen > seen:  # a proxy's keep-alive comments are no sign of life
            self._heard_at = self._clock.now()
            if not seen and not self._end.done():
                self._watch(self._limit())

    def on_end(self) -> None:
        """Take the end of the body."""
        self._complete = True
        if self._status != _OK:
            self._refused()
            return
        self.fail(EngineDied(f"the stream ended {self._where()} without a finish reason"))

    def on_lost(self, reason: Exception | None) -> None:
        """Take the loss of the connection; it may be what ends the text of an error."""
        if self._status not in {0, _OK}:
            self.on_end()
            return
        if reason is not None and not isinstance(reason, OSError):
            self.fail(reason)
            return
        detail = f" ({reason})" if reason else ""
        self.fail(EngineDied(f"the connection broke {self._where()}{detail}"))

    # --- ends ---------------------------------------------------------------------------------

    def _refused(self) -> None:
        self.fail(error_for_status(self._status, error_message(bytes(self._error_body))))

    def _look_for_end(self) -> None:
        if self.tokens.error is not None:
            self.fail(error_for_event(self.tokens.error))
        elif self.tokens.end is not None:
            self._end.set_result(result_of(self.tokens.end))
            self.notice()

    def _where(self) -> str:
        seen = self.tokens.seen
        begun = self._events.beginning
        cut = f" and part of an event, {begun!r}," if begun else ""
        return f"after {seen} tokens{cut}" if seen else f"before the first token{cut}"

    def _limit(self) -> float:
        begun = self.tokens.seen > 0
        return self._deadlines.between_tokens_s if begun else self._deadlines.first_token_s

    def _watch(self, delay_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._check_silence)

    def _check_silence(self) -> None:
        if self._end.done():
            return
        silent_s = self._clock.now() - self._heard_at
        if silent_s < self._limit():
            self._watch(self._limit() - silent_s)
        elif self._clock.stopped:
            self._watch(self._limit())
        else:
            self.fail(EngineDied(f"silent for {silent_s:.1f} s {self._where()}"))
