"""Wakeups: waiting for a change that any thread may make, each waiter on its own event loop."""

from __future__ import annotations

import asyncio
import threading


class Waiter:
    """One wait for the next change after it was made."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()

    async def wait(self) -> None:
        """Return when something has changed since this waiter was made."""
        await self._told.wait()

    def tell(self) -> None:
        """Wake it, from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._told.set)


class Wakeups:
    """A condition across threads: make a waiter, look, and wait on it if there was nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []

    def waiter(self) -> Waiter:
        """Make a waiter; a change that is told from now on wakes it."""
        waiter = Waiter()
        with self._lock:
            self._waiters.append(waiter)
        return waiter

    def tell(self) -> None:
        """Wake everybody."""
        with self._lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.tell()
