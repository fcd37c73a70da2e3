"""Gate: where new generations wait on this side while the engine drains."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.engine.sglang.flight import Flight


class Gate:
    """Open at first. Whoever waits can be aborted."""

    def __init__(self) -> None:
        self._waiting: set[asyncio.Future[None]] = set()
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether nobody gets through."""
        return self._closed

    def close(self) -> None:
        """Let nobody through until `open`."""
        self._closed = True

    def open(self) -> None:
        """Let everybody through. Idempotent."""
        self._closed = False
        for future in self._waiting:
            _resolve(future)

    async def passed(self, flight: Flight) -> None:
        """Wait until the gate is open. Raises GenerationAborted."""
        while self._closed and not flight.abort_asked:
            future = asyncio.get_running_loop().create_future()
            flight.wake = lambda future=future: _resolve(future)
            self._waiting.add(future)
            try:
                await future
            finally:
                flight.wake = None
                self._waiting.discard(future)
        flight.check()


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
