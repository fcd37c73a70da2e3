"""Stopwatch: the seconds that an episode itself has spent, by the running loop's clock."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stopwatch:
    """Runs inside `running()` only, so waiting for a slot and being pickled cost no time."""

    def __init__(self) -> None:
        self.started = False
        """Whether it ever ran."""
        self._spent_s = 0.0
        self._since: float | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the seconds of this block."""
        clock = asyncio.get_running_loop().time
        self.started = True
        self._since = began = clock()
        try:
            yield
        finally:
            self._spent_s += clock() - began
            self._since = None

    def elapsed_s(self) -> float:
        """Seconds so far, those of a block that still runs included."""
        if self._since is None:
            return self._spent_s
        return self._spent_s + asyncio.get_running_loop().time() - self._since
