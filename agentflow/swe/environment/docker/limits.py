"""Stage: how many may do one thing at once, who waits for it, and for how long.

Each stage of a container's life has its own limit, so none can starve another by holding its slots.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.protocols import Runner


class Stage:
    """A counted limit, first come first served, urgent callers before the rest."""

    def __init__(self, limit: int, runner: Runner) -> None:
        self.limit = limit
        self._runner = runner
        self._in_use = 0
        self._urgent: deque[asyncio.Future[None]] = deque()
        self._normal: deque[asyncio.Future[None]] = deque()
        self._acquired = 0
        self._waited_s = 0.0
        self._longest_wait_s = 0.0

    async def acquire(self, *, urgent: bool = False) -> None:
        """Take a slot, waiting for one if need be."""
        began = self._runner.now()
        if self._in_use < self.limit:
            self._in_use += 1
        else:
            await self._wait_in(self._urgent if urgent else self._normal)
        waited = self._runner.now() - began
        self._acquired += 1
        self._waited_s += waited
        self._longest_wait_s = max(self._longest_wait_s, waited)

    async def _wait_in(self, queue: deque[asyncio.Future[None]]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()  # the slot came together with the cancellation
            else:
                with suppress(ValueError):  # `release` may have passed over it
                    queue.remove(turn)
            raise

    def release(self) -> None:
        """Give a slot back, to the next in line if there is one."""
        for queue in (self._urgent, self._normal):
            while queue:
                turn = queue.popleft()
                if not turn.done():
                    turn.set_result(None)
                    return
        self._in_use -= 1

    @asynccontextmanager
    async def slot(self, *, urgent: bool = False) -> AsyncIterator[None]:
        """Hold a slot for the length of a block."""
        await self.acquire(urgent=urgent)
        try:
            yield
        finally:
            self.release()

    def gauges(self) -> dict[str, float]:
        """Slots in use and waited for, and the seconds that callers waited."""
        return {
            "limit": self.limit,
            "in_use": self._in_use,
            "waiting": len(self._urgent) + len(self._normal),
            "acquired": self._acquired,
            "waited_s": self._waited_s,
            "longest_wait_s": self._longest_wait_s,
        }
