"""Flights: requests that wait until told to end, and the slots that they run in.

A wait ends by time, by a slot handed over, or by a verdict; a flight learns of its verdict at the
next wait at the latest. One event loop; no tasks of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque


class Flight:
    """A request in flight: waits, until it is told to end."""

    def __init__(self) -> None:
        self._verdict: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None

    def end(self, verdict: Exception) -> None:
        """Raise `verdict` out of the current or the next wait; the first one counts."""
        if self._verdict is None:
            self._verdict = verdict
            self.wake()

    def wake(self) -> None:
        """End the current wait, if there is one."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, seconds: float | None) -> None:
        """Let others run for `seconds`, None: until woken. Raises the verdict."""
        if seconds == 0:
            await asyncio.sleep(0)
        elif self._verdict is None:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                async with asyncio.timeout(seconds):
                    await self._waiter
            except TimeoutError:
                pass
            finally:
                self._waiter = None
        if self._verdict is not None:
            raise self._verdict


class Slots:
    """At most `limit` flights run; the others wait in order."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._taken = 0
        self._queue: deque[Flight] = deque()

    @property
    def waiting(self) -> int:
        """Flights in the queue."""
        return len(self._queue)

    async def acquire(self, flight: Flight) -> None:
        """Take a slot, or wait for one that `release` hands over."""
        if self._limit is None or self._taken < self._limit:
            self._taken += 1
            return
        self._queue.append(flight)
        try:
            await flight.wait(None)
        except BaseException:
            if flight in self._queue:
                self._queue.remove(flight)
            else:  # the slot was handed over in the same instant
                self.release()
            raise

    def release(self) -> None:
        """Hand the slot to the next in line."""
        if self._queue:
            self._queue.popleft().wake()
        else:
            self._taken -= 1
