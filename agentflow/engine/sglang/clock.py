"""PausableClock: the loop's time, less the time that the engine stood paused."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class PausableClock:
    """Stops while at least one holder holds it; what deadlines of generations are measured by."""

    def __init__(self) -> None:
        self._holders = 0
        self._stopped_at = 0.0
        self._lost = 0.0

    def now(self) -> float:
        """Seconds that passed while nobody held the clock."""
        loop_time = asyncio.get_running_loop().time()
        return (self._stopped_at if self._holders else loop_time) - self._lost

    @property
    def stopped(self) -> bool:
        """Whether somebody holds it."""
        return self._holders > 0

    def hold(self) -> None:
        """Stop it, until `release` was called as often."""
        if not self._holders:
            self._stopped_at = asyncio.get_running_loop().time()
        self._holders += 1

    def release(self) -> None:
        """Undo one `hold`."""
        if not self._holders:
            raise RuntimeError("release() without hold()")
        self._holders -= 1
        if not self._holders:
            self._lost += asyncio.get_running_loop().time() - self._stopped_at

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold it for the duration of a block."""
        self.hold()
        try:
            yield
        finally:
            self.release()
