"""DockerEnv: an episode's environment, which is one container and one session in it."""

from __future__ import annotations

import asyncio
import errno
import posixpath
from typing import TYPE_CHECKING, Any, Self

from agentflow.errors import CommandFailed, ContainerKilled, EnvDied, EpisodeError
from agentflow.swe.environment.docker.errors import EngineRefused, EngineSilent
from agentflow.swe.environment.docker.files import HelperFiles, ShellFiles, require_below
from agentflow.swe.environment.docker.freezer import Freezer
from agentflow.swe.environment.docker.wire import MAX_ARGUMENT, Command, EndFlag
from agentflow.types import CommandResult

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from agentflow.swe.environment.docker.config import DockerConfig
    from agentflow.swe.environment.docker.container import Container
    from agentflow.swe.environment.docker.files import Files
    from agentflow.swe.environment.docker.limits import Stage
    from agentflow.swe.environment.docker.nursery import Nursery
    from agentflow.swe.environment.docker.session import Session
    from agentflow.swe.environment.docker.wire import Ended
    from agentflow.types import ContainerSpec

BASH = "/bin/bash"
CANNOT_RUN = 126
"""The shell's own code for a command that is there but cannot be run."""
KILLED = 137
TIMED_OUT = -1
FILE_TIMEOUT_S = 120.0


class DockerEnv:
    """One environment; made by `DockerEnvBuilder.start` and `attach`."""

    def __init__(  # all of it is what one environment stands on
        self,
        *,
        container: Container,
        session: Session,
        spec: ContainerSpec,
        config: DockerConfig,
        facts: Mapping[str, Any],
        commands: Stage,
        nursery: Nursery,
        ended: Callable[[], None],
    ) -> None:
        self.container = container
        self.session = session
        self.spec = spec
        self._config = config
        self._facts = facts
        self._commands = commands
        self._nursery = nursery
        self._ended = ended
        self._files: Files = (HelperFiles if session.has_helper else ShellFiles)(
            self._run_for_files
        )
        self._fatal: EpisodeError | None = None
        self._stopping: asyncio.Task[None] | None = None
        self._freezer = Freezer(container, after_s=config.pause_after_s, nursery=nursery)

    @property
    def name(self) -> str:
        """The container's name, unique on its engine."""
        return self.container.name

    async def execute(
        self,
        command: str,
        *,
        check: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run `command` in bash; see `ContainerEnv.execute`.

        `cwd` is relative to the workdir. A command that cannot be started (its directory is gone,
        its text holds a NUL) ends with exit code 126 and says so.
        """
        self._require_alive()
        if "\0" in command:
            result = CommandResult(exit_code=CANNOT_RUN, output=b"the command holds a NUL byte\n")
        else:
            text = _encodable(command)
            long = len(text.encode("utf-8", "surrogateescape")) > MAX_ARGUMENT
            argv = (BASH, "/proc/self/fd/3") if long else (BASH, "-c", text)
            script = text.encode("utf-8", "surrogateescape") if long else None
            result = await self.run(argv, script=script, cwd=cwd, env=env, timeout_s=timeout_s)
        if check and result.exit_code != 0:
            raise CommandFailed(command, result)
        return result

    async def run(  # the protocol's four, and the two kinds of input
        self,
        argv: tuple[str, ...],
        *,
        script: bytes | None = None,
        stdin: bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        head_bytes: int | None = None,
    ) -> CommandResult:
        """Run a program without a shell; otherwise as `execute`."""
        command = Command(
            argv=argv,
            cwd=posixpath.join(self.spec.workdir, cwd or ""),
            env={**self.spec.env, **(env or {})},
            timeout_s=self._config.timeout_s if timeout_s is None else timeout_s,
            head_bytes=self._config.output_head_bytes if head_bytes is None else head_bytes,
            tail_bytes=self._config.output_tail_bytes,
            script=script,
            stdin=stdin,
            keep_background=self._config.keep_background,
        )
        return await self._result(await self._run(command))

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Write files as the container's user; see `ContainerEnv.write_files`.

        Follows no link below `root`: one in a file's place is replaced, one on the way, or a path
        that leads out, is a ValueError. A full disk is a ValueError too: it is the policy's.
        """
        self._require_alive()
        for path in files:
            require_below(path)
        await self._files.write(posixpath.join(self.spec.workdir, root or ""), files)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a regular file's bytes; see `ContainerEnv.read_file`.

        Follows no link below the workdir, and outside of it none in the file's place.
        """
        self._require_alive()
        if "\0" in path:
            raise ValueError(f"{path!r} holds a NUL byte")
        return await self._files.read(*self._locate(path), max_bytes=max_bytes)

    async def _run_for_files(
        self, argv: tuple[str, ...], *, stdin: bytes | None = None, head_bytes: int | None = None
    ) -> CommandResult:
        return await self.run(
            argv, stdin=stdin, cwd="/", timeout_s=FILE_TIMEOUT_S, head_bytes=head_bytes
        )

    def _locate(self, path: str) -> tuple[str, str]:
        """Split a path into a folder whose links count and the rest, whose links do not."""
        whole = posixpath.normpath(posixpath.join(self.spec.workdir, path))
        workdir = self.spec.workdir.rstrip("/") + "/"
        if whole.startswith(workdir):
            return workdir, whole.removeprefix(workdir)
        folder, name = posixpath.split(whole)
        return folder, name

    def template_vars(self) -> dict[str, Any]:
        """`cwd`, `image` and uname's fields as the container sees them."""
        return {"cwd": self.spec.workdir, **self._facts}

    async def stop(self) -> None:
        """Remove the container. Idempotent; a cancelled wait leaves the removal running."""
        if self._stopping is None:
            self._fatal = self._fatal or EnvDied(f"{self.name} was stopped")
            self._stopping = self._nursery.start(self._stop(), name=f"stop {self.name}")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        self._freezer.close()
        try:
            await self.session.close()
            await self.container.remove()
        finally:
            self._ended()

    async def let_go(self, *, ttl_s: int) -> None:
        """Leave the container to whoever attaches next, for so many seconds."""
        self._require_alive()
        await self._freezer.thaw()
        await self.session.keep_for(ttl_s)
        self._fatal = EnvDied(f"{self.name} was detached")
        self._freezer.close()
        await self.session.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None:
        await self.stop()

    # --- death --------------------------------------------------------------------------------

    async def check_alive(self) -> None:
        """Raise the typed error when the container is gone; asks the engine on a mere suspicion."""
        self._require_alive()
        if self._freezer.in_use or self.session.connected:
            return
        try:
            await self.container.ensure_running()
            self._freezer.thawed()
        except EpisodeError as error:
            self._fatal = self._fatal or error
            raise self._fatal from error
        except (EngineRefused, EngineSilent) as error:
            self._fatal = EnvDied(f"{self.name}: {error}")
            raise self._fatal from error

    # --- inside -------------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if self._fatal is not None:
            raise self._fatal

    async def _run(self, command: Command) -> Ended:
        self._require_alive()
        async with self._commands.slot():
            try:
                async with self._freezer.awake():
                    ended = await self.session.run(command)
                    if ended.flags & EndFlag.START_FAILED and ended.error == errno.EAGAIN:
                        # What earlier commands left in the background fills the pids limit.
                        await self.session.clear()
                        ended = await self.session.run(command)
            except EpisodeError as error:
                self._fatal = self._fatal or error
                if self._fatal is not error:  # stopped while the command ran
                    raise self._fatal from error
                raise
            except (EngineRefused, EngineSilent) as error:
                self._fatal = EnvDied(f"{self.name}: {error}")
                raise self._fatal from error
        if ended.flags & EndFlag.SURVIVOR:
            self._fatal = ContainerKilled(f"{self.name}: a process survived SIGKILL")
            raise self._fatal
        return ended

    async def _result(self, ended: Ended) -> CommandResult:
        if ended.flags & EndFlag.START_FAILED:
            why = f"cannot start a command: {errno.errorcode.get(ended.error, ended.error)}\n"
            return CommandResult(exit_code=CANNOT_RUN, output=why.encode())
        timed_out = bool(ended.flags & EndFlag.TIMED_OUT)
        return CommandResult(
            exit_code=TIMED_OUT if timed_out else ended.exit_code,
            output=ended.output,
            dropped_bytes=ended.total_bytes - len(ended.output),
            timed_out=timed_out,
            out_of_memory=ended.oom_kills > 0 or await self._oom_event(ended),
            duration_s=ended.duration_s,
        )

    async def _oom_event(self, ended: Ended) -> bool:
        """Ask the engine where the container's cgroup could not be read, and only then."""
        if not ended.flags & EndFlag.OOM_UNKNOWN or ended.exit_code != KILLED:
            return False
        within_s = ended.duration_s + 1
        try:
            return await self.container.engine.oom_events(self.name, within_s=within_s) > 0
        except (EngineRefused, EngineSilent):
            return False


def _encodable(command: str) -> str:
    """Replace lone surrogates that stand for no byte; a model's JSON may hold them."""
    try:
        command.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return command.encode(errors="replace").decode()
    return command
