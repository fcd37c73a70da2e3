"""SideBySide: commands of one environment that run at the same time.

Episodes run one command after the other, over the main session. A command that comes while one
runs gets a session of its own, made by an exec (0.1 s) and kept for the next time; from then on
the main helper finds its own processes one by one instead of killing all there are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.swe.environment.docker.session import HelperSession
    from agentflow.swe.environment.docker.wire import Command, Ended

MAX_SIDES = 8
"""More commands at once wait for one of these."""


class SideBySide:
    """A session that is several."""

    has_helper = True

    def __init__(self, main: HelperSession, make_side: Callable[[], HelperSession]) -> None:
        self._main = main
        self._make_side = make_side
        self._all = [main]
        self._idle = [main]

    @property
    def connected(self) -> bool:
        """Whether the main session's connection is up."""
        return self._main.connected

    async def open(self) -> None:
        """Connect the main session. Raises StreamLost."""
        await self._main.open()

    async def run(self, command: Command) -> Ended:
        """Run a command now, whatever else runs; see `Session.run`."""
        session = self._idle.pop() if self._idle else self._another()
        try:
            return await session.run(command)
        finally:
            if session not in self._idle:
                self._idle.insert(len(self._idle) if session is self._main else 0, session)

    def _another(self) -> HelperSession:
        if len(self._all) > MAX_SIDES:
            return self._all[-1]
        side = self._make_side()
        self._all.append(side)
        self._main.share()
        return side

    async def clear(self) -> None:
        """Kill everything that earlier commands left."""
        await self._main.clear()

    async def keep_for(self, seconds: int) -> None:
        """Let the container live through so many seconds of silence."""
        await self._main.keep_for(seconds)

    async def close(self) -> None:
        """Let go of every connection. Idempotent."""
        for session in self._all:
            await session.close()
