"""LocalEnv: one environment on this machine, a directory tree that commands run in.

Only the tree lasts between commands. Nothing of the owner's environment reaches a command but
PATH (this Python's programs first), LANG, LC_ALL and TZ.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Self

from agentflow.errors import CommandFailed, ContainerKilled, EnvDied
from agentflow.swe.environment import confined
from agentflow.swe.environment.leftovers import MARK, end_leftovers
from agentflow.swe.environment.sandbox import Layout, Sandbox, locate, search_path
from agentflow.swe.environment.scratch import remove_tree
from agentflow.swe.environment.supervision import Call, Launch, Outcome, Supervision
from agentflow.swe.environment.supervisor import CANNOT_RUN
from agentflow.types import CommandResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from agentflow.protocols import Runner
    from agentflow.swe.environment.local_config import LocalEnvConfig

KILLED = 137
"""128 + SIGKILL."""

BAD_MACHINE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO})
"""Errors of writing that no input causes: disk full, read-only, broken."""


class LocalEnv:
    """One environment; made by `LocalEnvBuilder.start`."""

    def __init__(
        self,
        *,
        name: str,
        config: LocalEnvConfig,
        layout: Layout,
        sandbox: Sandbox,
        given: Mapping[str, str],
        supervision: Supervision,
        runner: Runner,
    ) -> None:
        self._name = name
        self._config = config
        self._layout = layout
        self._sandbox = sandbox
        self.given = dict(given)
        """Variables that its spec brought."""
        self._variables = {**_inherited(), **sandbox.variables(layout), **config.env, **given}
        self._supervision = supervision
        self._runner = runner
        self._calls: set[Call] = set()
        self._stopped = False

    @property
    def name(self) -> str:
        """Identifies it in logs; unique on this machine."""
        return self._name

    @property
    def root(self) -> Path:
        """The directory on this machine that holds all of it."""
        return self._layout.root

    @property
    def workdir(self) -> str:
        """The path that the repository was asked for at."""
        return self._layout.workdir

    async def create(self) -> None:
        """Make its directories; the builder calls it. Raises OSError."""
        await self._runner.to_thread(self._layout.create)

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

        `cwd` is relative to the workdir. A command that cannot be started (its directory is
        gone, its text holds a NUL) ends with exit code 126 and says so.
        """
        self._require_alive()
        if "\0" in command:
            result = CommandResult(exit_code=CANNOT_RUN, output=b"the command holds a NUL byte\n")
        else:
            launch = self._launch(command, cwd=cwd, env=env or {}, timeout_s=timeout_s)
            result = self._result(await self._run(launch))
        if check and result.exit_code != 0:
            raise CommandFailed(command, result)
        return result

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Write files; see `ContainerEnv.write_files`.

        Follows no symbolic link: one in a file's place is replaced, one on the way, or a path
        that leads out, is a ValueError. A full disk is EnvDied.
        """
        self._require_alive()
        top, below = self._locate(root or "")
        with self._write_failures_named():
            await self._runner.to_thread(confined.write_files, top, dict(files), below=below)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a regular file's bytes; see `ContainerEnv.read_file`. Follows no link."""
        self._require_alive()
        top, below = self._locate(path)
        return await self._runner.to_thread(confined.read_file, top, below, max_bytes=max_bytes)

    def template_vars(self) -> dict[str, Any]:
        """`cwd`, `home` and `tmp` as commands see them, `sandbox`, and uname's fields."""
        uname = platform.uname()
        variables = self._sandbox.variables(self._layout)
        return {
            "cwd": self._sandbox.workdir(self._layout),
            "home": variables["HOME"],
            "tmp": variables["TMPDIR"],
            "sandbox": self._sandbox.name,
            "system": uname.system,
            "release": uname.release,
            "version": uname.version,
            "machine": uname.machine,
        }

    async def stop(self) -> None:
        """Kill what runs, remove the directory. Idempotent."""
        self._stopped = True
        for call in list(self._calls):
            await call.end()
        await self._end_leftovers()
        await self._runner.to_thread(remove_tree, self._layout.root)

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

    # --- inside -------------------------------------------------------------------------------

    def _require_alive(self) -> None:
        if self._stopped:
            raise EnvDied(f"{self._name} was stopped")
        if not self._layout.root.is_dir():
            raise EnvDied(f"{self._name}: its directory {self._layout.root} is gone")

    def _launch(
        self, command: str, *, cwd: str | None, env: Mapping[str, str], timeout_s: float | None
    ) -> Launch:
        program = self._sandbox.program(
            self._layout, _encodable(command), self._absolute(cwd or "")
        )
        limits = {"RLIMIT_CORE": 0}
        if self._config.memory_limit_bytes is not None:
            limits["RLIMIT_AS"] = self._config.memory_limit_bytes
        return Launch(
            argv=program.argv,
            env={**self._variables, **env, **self._mark()},
            cwd=program.cwd,
            script=program.script,
            wants_status=program.wants_status,
            timeout_s=self._config.timeout_s if timeout_s is None else timeout_s,
            head_bytes=self._config.output_head_bytes,
            tail_bytes=self._config.output_tail_bytes,
            limits=limits,
        )

    async def _run(self, launch: Launch) -> Outcome | None:
        """Start it and wait for its end; a cancelled wait kills it and waits for its death."""
        try:
            call = await self._supervision.begin(launch)
        except OSError as error:
            raise EnvDied(f"{self._name}: cannot start a command: {error}") from error
        self._calls.add(call)
        try:
            await call.wait()
        except asyncio.CancelledError:
            await call.end()
            raise
        finally:
            if call.ended.is_set():
                self._calls.discard(call)
        outcome = call.outcome()
        if outcome is None and not self._calls:  # else its leftovers die at the end of the others
            await self._end_leftovers()
        return outcome

    def _mark(self) -> dict[str, str]:
        if self._sandbox.contains_processes:
            return {}
        return {MARK: os.fspath(self._layout.root)}

    async def _end_leftovers(self) -> None:
        """Kill what lost its supervisor, which from within a sandbox nothing can."""
        if not self._sandbox.contains_processes:
            await end_leftovers(self._layout.root, self._runner)

    def _result(self, outcome: Outcome | None) -> CommandResult:
        if self._stopped:
            raise EnvDied(f"{self._name} was stopped while a command ran")
        if not self._layout.root.is_dir():
            raise ContainerKilled(f"{self._name}: a command removed {self._layout.root}")
        if outcome is None:
            return self._lost()
        if not outcome.tree_dead:
            raise EnvDied(f"{self._name}: a process survived SIGKILL")
        failure = self._sandbox.failure(outcome)
        if failure is not None and "Can't chdir" not in failure:
            raise EnvDied(f"{self._name}: {failure}")
        return CommandResult(
            exit_code=outcome.exit_code if failure is None else CANNOT_RUN,
            output=outcome.output,
            dropped_bytes=outcome.dropped_bytes,
            timed_out=outcome.timed_out,
            duration_s=outcome.duration_s,
        )

    def _lost(self) -> CommandResult:
        """Its supervisor was killed, which from within a sandbox no command can do."""
        message = "the command's supervisor was killed; its output is lost"
        if self._sandbox.contains_processes:
            raise EnvDied(f"{self._name}: {message}")
        return CommandResult(exit_code=KILLED, output=f"{message}\n".encode())

    def _absolute(self, path: str) -> str:
        return os.fspath(PurePosixPath(self._sandbox.workdir(self._layout)) / path)

    def _locate(self, path: str) -> tuple[str, str]:
        found = locate(self._sandbox.paths(self._layout), self._absolute(path))
        if found is None:
            raise ValueError(f"{path}: not inside the environment")
        return os.fspath(found[0]), found[1]

    @contextmanager
    def _write_failures_named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._require_alive()
            if not self._layout.work.is_dir():
                raise ContainerKilled(f"{self._name}: a command removed the workdir") from error
            if error.errno in BAD_MACHINE:
                raise EnvDied(f"{self._name}: cannot write files: {error}") from error
            raise ValueError(f"cannot write files: {error}") from error


def _inherited() -> dict[str, str]:
    """All that a command sees of this process's environment."""
    kept = {name: os.environ[name] for name in ("LC_ALL", "TZ") if name in os.environ}
    return {"PATH": search_path(), "LANG": os.environ.get("LANG", "C.UTF-8"), **kept}


def _encodable(command: str) -> str:
    """Replace lone surrogates that stand for no byte; a model's JSON may hold them."""
    try:
        os.fsencode(command)
    except UnicodeEncodeError:
        return command.encode(errors="replace").decode()
    return command
