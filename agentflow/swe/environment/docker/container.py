"""Container: one container from its creation to its removal, and the verdict on how it ended.

Answers a session's questions (`Host`). Runs no command itself.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.errors import ContainerKilled, EnvDied, EpisodeError
from agentflow.swe.environment.docker.errors import (
    ContainerDied,
    EngineGone,
    EngineRefused,
    EngineSilent,
    OutOfMemory,
    StreamLost,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentflow.protocols import Runner
    from agentflow.swe.environment.docker.engine import ContainerState, Engine
    from agentflow.swe.environment.docker.stream import RawStream

EXIT_TTL = 75
"""The helper's exit code after its time of silence."""
EXIT_REBOOT = frozenset({129, 130})
"""SIGHUP and SIGINT on PID 1: what reboot(2) in a container's own namespace does to it."""
SIGNALLED = 128
"""Below the exit code of a process that a signal ended."""
EXIT_LOOKS = 20
"""An engine says "running" for some milliseconds after the end of a process."""
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
"""Pauses between questions to an engine that is away; a restart takes about half a second."""


class Container:
    """A container that exists. `name` finds it before its id is known."""

    def __init__(self, engine: Engine, name: str, *, reconnect_s: float, runner: Runner) -> None:
        self.engine = engine
        self.name = name
        self._reconnect_s = reconnect_s
        self._runner = runner
        self.exec_argv: Sequence[str] | None = None
        """What to run for a session beside PID 1; None attaches to PID 1."""
        self._process = ""
        """The engine's name for what `exec_argv` ran last."""

    async def connect(
        self, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> RawStream:
        """Open a stream to the session's process. Raises StreamLost."""
        if self.exec_argv is None:
            return await self.engine.attach(self.name, received=received, lost=lost)
        try:
            self._process = await self.engine.create_exec(self.name, self.exec_argv)
            return await self.engine.exec_stream(self._process, received=received, lost=lost)
        except (EngineRefused, EngineSilent) as error:
            raise StreamLost(str(error)) from error

    async def was_killed(self) -> bool:
        """Whether a signal ended the process that `connect` ran beside PID 1.

        False where only the connection broke, or the engine was restarted and has forgotten it.
        """
        for _ in range(EXIT_LOOKS):
            try:
                code = await self.engine.exec_code(self._process)
            except (EngineRefused, EngineSilent):
                return False
            if code is not None:
                return code > SIGNALLED
            await asyncio.sleep(FIRST_RETRY_S)
        return False

    async def ensure_running(self) -> None:
        """Return when it runs, waiting for an engine that is away.

        Raises EngineGone, ContainerDied, ContainerKilled or OutOfMemory.
        """
        state = await self._state()
        if state is None:
            raise ContainerDied(f"container {self.name} was removed from outside")
        if state.paused:
            await self.engine.unpause(self.name)
        elif not state.running:
            raise verdict(self.name, state)

    async def _state(self) -> ContainerState | None:
        give_up_at = self._runner.now() + self._reconnect_s
        pause = FIRST_RETRY_S
        while True:
            try:
                return await self.engine.state(self.name)
            except EngineSilent as error:
                if self._runner.now() + pause > give_up_at:
                    message = f"no engine for {self._reconnect_s:g} s: {error}"
                    raise EngineGone(message) from error
            except EngineRefused as error:
                raise EnvDied(f"container {self.name}: {error}") from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RETRY_S)

    async def remove(self) -> None:
        """Remove it, waiting for an engine that is away. Raises EngineGone."""
        give_up_at = self._runner.now() + self._reconnect_s
        pause = FIRST_RETRY_S
        while True:
            try:
                await self.engine.remove(self.name)
            except EngineSilent as error:
                if self._runner.now() + pause > give_up_at:
                    raise EngineGone(f"container {self.name} is not removed: {error}") from error
            else:
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_RETRY_S)


def verdict(name: str, state: ContainerState) -> EpisodeError:
    """Say who ended a container that does not run any more.

    No command can signal PID 1 of its own namespace, so SIGKILL came from outside unless the
    engine saw the kernel kill it for memory.
    """
    if state.out_of_memory:
        return OutOfMemory(f"container {name} ran out of memory")
    if state.exit_code in EXIT_REBOOT:
        return ContainerKilled(f"a command rebooted container {name}")
    if state.exit_code == EXIT_TTL:
        return ContainerDied(f"container {name} ended itself: it heard nothing for its whole ttl_s")
    why = f": {state.error}" if state.error else ""
    return ContainerDied(f"container {name} ended with exit code {state.exit_code}{why}")
