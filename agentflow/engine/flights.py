"""Flights: requests that wait until told to end, the slots they run in, the gate that holds them.

A wait ends by time, by a slot handed over, or by a verdict; a flight learns of its verdict at the
next wait at the latest. One event loop; no tasks of their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from agentflow.types import SyncMode

if TYPE_CHECKING:
    from collections.abc import Collection


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


class Gate:
    """The pause of an engine: holds new flights, and lets admitted ones stand still."""

    def __init__(self) -> None:
        self.mode: SyncMode | None = None
        """How the engine is paused; None while it runs."""
        self._held: set[Flight] = set()
        self._admitted: set[Flight] = set()
        self._left = asyncio.Event()

    @property
    def admitted(self) -> frozenset[Flight]:
        """Flights that have passed and not left."""
        return frozenset(self._admitted)

    def close(self, mode: SyncMode) -> None:
        """Hold whoever comes from now on."""
        self.mode = mode

    def open(self) -> None:
        """Let everybody go on."""
        self.mode = None
        for flight in self._held:
            flight.wake()

    async def passed(self, flight: Flight) -> None:
        """Wait while the gate is closed. Raises the flight's verdict."""
        await self._hold(flight, set(SyncMode))
        self._admitted.add(flight)

    async def stood_still(self, flight: Flight) -> None:
        """Wait while running flights must not go on. Raises the flight's verdict."""
        await self._hold(flight, _STILL)

    def leave(self, flight: Flight) -> None:
        """End a flight, whether it was admitted or not."""
        self._admitted.discard(flight)
        self._left.set()

    async def until_left(self, flights: Collection[Flight]) -> None:
        """Wait until none of `flights` is admitted any more."""
        while not self._admitted.isdisjoint(flights):
            self._left.clear()
            await self._left.wait()

    async def _hold(self, flight: Flight, modes: Collection[SyncMode]) -> None:
        if self.mode not in modes:
            return
        self._held.add(flight)
        try:
            while self.mode in modes:
                await flight.wait(None)
        finally:
            self._held.discard(flight)


_STILL = frozenset({SyncMode.IN_PLACE, SyncMode.RETRACT})
