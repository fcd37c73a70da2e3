"""Freezer: `docker pause` of one container while nothing runs in it, and its thaw.

Nothing runs in a frozen container: whoever uses it says so first, and a pause that is under way
then is waited for and undone.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from agentflow.swe.environment.docker.errors import EngineRefused, EngineSilent

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.swe.environment.docker.container import Container
    from agentflow.swe.environment.docker.nursery import Nursery

log = logging.getLogger(__name__)


class Freezer:
    """Pauses a container that nobody has used for `after_s` seconds; None: never."""

    def __init__(self, container: Container, *, after_s: float | None, nursery: Nursery) -> None:
        self._container = container
        self._after_s = after_s
        self._nursery = nursery
        self._turn = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._users = 0
        self._frozen = False
        self._closed = False

    @property
    def in_use(self) -> bool:
        """Whether somebody keeps it awake now."""
        return self._users > 0

    @asynccontextmanager
    async def awake(self) -> AsyncIterator[None]:
        """Keep it awake for the length of a block. Raises what `thaw` raises."""
        self._users += 1
        try:
            await self.thaw()
            yield
        finally:
            self._users -= 1
            self._freeze_later()

    async def thaw(self) -> None:
        """Unpause it if it is frozen, waiting for an engine that is away.

        Raises EngineRefused, EngineSilent, or the typed error of a container that is gone.
        """
        self._cancel_timer()
        async with self._turn:
            if self._frozen:
                self._frozen = False
                try:
                    await self._container.engine.unpause(self._container.name)
                except EngineSilent:  # it may have died before or after it did it
                    await self._container.ensure_running()

    def thawed(self) -> None:
        """Know that somebody else has unpaused it."""
        self._frozen = False

    def close(self) -> None:
        """Freeze it no more. Idempotent."""
        self._closed = True
        self._cancel_timer()

    # --- inside -------------------------------------------------------------------------------

    def _freeze_later(self) -> None:
        if self._after_s is None or self._closed or self.in_use:
            return
        self._cancel_timer()
        self._timer = asyncio.get_running_loop().call_later(self._after_s, self._freeze_now)

    def _freeze_now(self) -> None:
        self._nursery.start(self._freeze(), name=f"pause {self._container.name}")

    async def _freeze(self) -> None:
        async with self._turn:
            if self._closed or self.in_use:
                return
            self._frozen = True
            try:
                await self._container.engine.pause(self._container.name)
            except (EngineRefused, EngineSilent) as error:
                self._frozen = False  # it only costs what it did before
                log.info("%s is not paused: %s", self._container.name, error)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
