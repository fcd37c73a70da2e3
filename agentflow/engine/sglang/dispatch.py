"""Dispatch: one request to a replica, and to another one, or again, where it is known not to run.

Owns the one retry policy of generations. Invariant: a request is sent again only after an
EngineUnreachable, which says that it does not run.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import stamina

from agentflow.errors import EngineDied, EngineOverloaded, EngineUnreachable

if TYPE_CHECKING:
    from agentflow.engine.sglang.clock import PausableClock
    from agentflow.engine.sglang.flight import Flight
    from agentflow.engine.sglang.replica import Replica
    from agentflow.engine.sglang.routing import Routing
    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, GenerationResult

ROUNDS = 4
"""Times that every replica is asked for a connection; one that is refused is often back soon."""

_WAIT_FIRST_S = 0.1
_WAIT_MAX_S = 1.0
"""Also the longest time after which a request that waits here learns of its abort."""
_WAIT_JITTER_S = 0.1
"""What a full queue turned away at once must not come back at once."""

_TELL_EVERY_S = 10.0

log = logging.getLogger(__name__)


class Dispatch:
    """Sends requests, checked already, for one engine."""

    def __init__(self, routing: Routing, *, clock: PausableClock, limit_s: float) -> None:
        """`limit_s` is how long a place in a queue is waited for."""
        self._routing = routing
        self._clock = clock
        self._limit_s = limit_s
        self._tell_again_at = 0.0

    async def run(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight
    ) -> GenerationResult:
        """Run one request to its end; tries replicas as long as `_Patience` lasts."""
        patience = _Patience(self._routing, self._clock, self._limit_s)
        try:
            return await self._attempt(request, sink, flight, patience)
        except EngineUnreachable as error:
            failed: EngineUnreachable | None = error
        async for attempt in stamina.retry_context(
            on=patience.with_another,
            attempts=None,
            timeout=None,
            wait_initial=_WAIT_FIRST_S,
            wait_max=_WAIT_MAX_S,
            wait_jitter=_WAIT_JITTER_S,
        ):
            with attempt:
                if failed is not None:  # the attempt above was the first: most need no policy
                    first, failed = failed, None
                    raise first
                return await self._attempt(request, sink, flight, patience)
        raise AssertionError("unreachable: the policy returns or raises")

    async def _attempt(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight, patience: _Patience
    ) -> GenerationResult:
        replica = self._routing.pick(request.rid, home=flight.home, tried=patience.tried)
        patience.tried.add(replica)
        try:
            return await replica.generate(request, sink, flight)
        except (EngineUnreachable, EngineDied) as error:
            self._routing.forget(request.rid)
            if not isinstance(error, EngineOverloaded):
                self._routing.let_rest(replica)
            if isinstance(error, EngineUnreachable):
                self._tell(error)
            raise

    def _tell(self, error: EngineUnreachable) -> None:
        """Log that generations find no place, once for all that do so at that time."""
        now = self._clock.now()
        if now >= self._tell_again_at:
            self._tell_again_at = now + _TELL_EVERY_S
            log.warning("a generation found no place, as others may: %s", error)


class _Patience:
    """Whether one request is sent again, and when.

    A full queue is waited for as long as a place in it would be; a connection that is refused, for
    ROUNDS rounds over all replicas. The wait stands still while the engine is paused.
    """

    def __init__(self, routing: Routing, clock: PausableClock, limit_s: float) -> None:
        self.tried: set[Replica] = set()
        """Replicas asked in this round."""
        self._routing = routing
        self._clock = clock
        self._ends = clock.now() + limit_s
        self._rounds_left = ROUNDS

    def with_another(self, error: Exception) -> bool | float:
        """Say whether to try again: stamina's hook, where a number is the seconds to wait."""
        if not isinstance(error, EngineUnreachable) or self._over:
            return False
        if self._routing.has_others(self.tried):
            return 0.0
        self.tried.clear()
        if not isinstance(error, EngineOverloaded):
            self._rounds_left -= 1
        return self._rounds_left > 0

    @property
    def _over(self) -> bool:
        return not self._clock.stopped and self._clock.now() >= self._ends
