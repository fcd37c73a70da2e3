"""SimulatedEnvBuilder: environments whose starts and commands take time and do nothing else.

`sleep SECONDS` at the head of a command is how long it takes; any other command takes `other_s`.
Files are kept in memory. Starts wait for a free container first, then for a start slot.
"""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from agentflow.errors import CommandFailed, EnvDied
from agentflow.types import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from agentflow.types import ContainerSpec

_SLEEP = re.compile(r"sleep (\d+(?:\.\d+)?|inf)\b")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvLimits:
    """How many environments there may be; None is unlimited."""

    containers: int | None = None
    """Live at once, starting ones included."""
    starts: int | None = None
    """Starting at once."""
    start_growth: float = 0.0
    """Share by which a start takes longer for each other start under way."""
    other_s: float = 0.05
    """Seconds of a command that does not say how long it takes."""


class SimulatedEnvBuilder:
    """Starts simulated environments and knows which live."""

    def __init__(
        self, start_s: Callable[[ContainerSpec], float], *, limits: EnvLimits | None = None
    ) -> None:
        """`start_s` tells how long an environment takes to start with no other beside it."""
        self.limits = limits if limits is not None else EnvLimits()
        self._start_s = start_s
        self._containers = _limit(self.limits.containers)
        self._starts = _limit(self.limits.starts)
        self._starting = 0
        self.make_env: Callable[[SimulatedEnvBuilder, str], SimulatedEnv] = SimulatedEnv
        self.live: dict[str, SimulatedEnv] = {}
        """Environments that were started and not stopped, by name."""
        self.started = 0
        self.most_live = 0
        self.busy_s = 0.0
        """Seconds of all starts and commands that have ended."""

    async def start(self, spec: ContainerSpec) -> SimulatedEnv:
        """Bring one up; waits for its turn."""
        await self._containers.acquire()
        try:
            async with self._starts:
                await self._wait_start(spec)
        except BaseException:
            self._containers.release()
            raise
        self.started += 1
        env = self.make_env(self, f"sim-{self.started}")
        self.live[env.name] = env
        self.most_live = max(self.most_live, len(self.live))
        return env

    async def _wait_start(self, spec: ContainerSpec) -> None:
        growth = 1 + self.limits.start_growth * self._starting
        self._starting += 1
        try:
            await asyncio.sleep(self._start_s(spec) * growth)
            self.busy_s += self._start_s(spec) * growth
        finally:
            self._starting -= 1

    def remove(self, env: SimulatedEnv) -> None:
        """Give a container back."""
        if self.live.pop(env.name, None) is not None:
            self._containers.release()

    async def close(self) -> None:
        """Nothing outlives its environment."""


class SimulatedEnv:
    """One environment."""

    def __init__(self, builder: SimulatedEnvBuilder, name: str) -> None:
        self._builder = builder
        self._name = name
        self._files: dict[str, bytes] = {}
        self._gone = False
        self._waiting: set[asyncio.Future[bool]] = set()
        """What runs in it: True when its time has passed, False when it dies before."""

    @property
    def name(self) -> str:
        """Identifies it in logs."""
        return self._name

    def kill(self) -> None:
        """Die: what runs and what comes fails with EnvDied, until `stop` removes it."""
        self._gone = True
        for passed in self._waiting:
            _end_wait(passed, False)

    async def execute(
        self,
        command: str,
        *,
        check: bool = False,
        cwd: str | None = None,  # noqa: ARG002  # there is no file system to stand in
        env: Mapping[str, str] | None = None,  # noqa: ARG002  # nothing reads variables
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Take the command's time, or `timeout_s` if that is less."""
        takes_s = self._duration(command)
        timed_out = timeout_s is not None and takes_s > timeout_s
        spent_s = timeout_s if timed_out and timeout_s is not None else takes_s
        await self._pass(spent_s)
        self._builder.busy_s += spent_s
        result = CommandResult(
            exit_code=-1 if timed_out else 0, output=b"", timed_out=timed_out, duration_s=spent_s
        )
        if check and timed_out:
            raise CommandFailed(command, result)
        return result

    def _duration(self, command: str) -> float:
        told = _SLEEP.match(command)
        return float(told[1]) if told else self._builder.limits.other_s

    async def _pass(self, seconds: float) -> None:
        """Let time pass. Raises EnvDied when the environment dies meanwhile."""
        if self._gone:
            raise EnvDied(f"environment {self._name} is gone")
        loop = asyncio.get_running_loop()
        passed: asyncio.Future[bool] = loop.create_future()
        self._waiting.add(passed)
        timer = loop.call_later(seconds, _end_wait, passed, True)
        try:
            if not await passed:
                raise EnvDied(f"environment {self._name} is gone")
        finally:
            timer.cancel()
            self._waiting.discard(passed)

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Keep `files` in memory."""
        await self._pass(0.0)
        self._files.update({_joined(root, path): data for path, data in files.items()})

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return what was written. Raises FileNotFoundError, ValueError above `max_bytes`."""
        await self._pass(0.0)
        data = self._files.get(_joined(None, path))
        if data is None:
            raise FileNotFoundError(path)
        if len(data) > max_bytes:
            raise ValueError(f"{path} has {len(data)} bytes; at most {max_bytes} were asked for")
        return data

    def template_vars(self) -> dict[str, Any]:
        """What prompts may say about it."""
        return {"cwd": "/testbed", "system": "Simulated", "machine": "none"}

    async def stop(self) -> None:
        """Remove it. Idempotent."""
        self.kill()
        self._builder.remove(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.stop()


def _limit(most: int | None) -> asyncio.Semaphore:
    return asyncio.Semaphore(most if most is not None else 1 << 30)


def _end_wait(passed: asyncio.Future[bool], whole: bool) -> None:  # noqa: FBT001  # a timer's
    if not passed.done():
        passed.set_result(whole)


def _joined(root: str | None, path: str) -> str:
    return path if path.startswith("/") else f"{root or '/testbed'}/{path}"
