"""LocalEnvBuilder: environments on this machine, without a container engine.

A builder owns a run directory and one supervisor process; its environments live in the one and
run their commands through the other.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from agentflow.aio import shielded
from agentflow.errors import CommandFailed, ConfigError, EnvDied, EnvStartFailed
from agentflow.provider_config import parse_section
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.leftovers import end_leftovers, kill_leftovers
from agentflow.swe.environment.local_config import LocalEnvConfig, SandboxChoice
from agentflow.swe.environment.local_env import LocalEnv
from agentflow.swe.environment.sandbox import (
    Bubblewrap,
    Layout,
    NoSandbox,
    Sandbox,
    can_limit_tmpfs,
    find_program,
)
from agentflow.swe.environment.scratch import (
    PREFIX,
    RunDirectory,
    default_scratch,
    remove_tree,
    sweep_scratch,
)
from agentflow.swe.environment.supervision import Supervision
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentflow.protocols import Runner

log = logging.getLogger(__name__)

START_TIMEOUT_S = 30.0
"""For the command that shows that an environment works; it takes 20 ms on an idle machine."""

HELD_S = 24 * 3600
"""How long a dead process's environments wait for a resume."""

RENEW_S = 3600
"""How much of that may pass before it is said anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLease:
    """What another process needs to have an environment back. Picklable."""

    root: str
    workdir: str
    env: Mapping[str, str]


class LocalEnvBuilder:
    """Starts environments; `close` removes all that is left of them."""

    config_class: ClassVar[type[LocalEnvConfig]] = LocalEnvConfig

    def __init__(self, subconf: Mapping[str, Any], *, runner: Runner | None = None) -> None:
        self._config = parse_section(self.config_class, subconf, kind="local environment")
        self._own_runner = AsyncioRunner()  # has no thread before it is used
        self._runner = self._own_runner if runner is None else runner
        self._supervision: Supervision | None = None
        self._lock = asyncio.Lock()
        self._sandbox: Sandbox | None = None
        self._run: RunDirectory | None = None
        self._adopted: dict[Path, RunDirectory] = {}
        """Run directories of dead processes whose environments live on here."""
        self._serial = itertools.count(1)

    async def start(self, spec: ContainerSpec) -> LocalEnv:
        """Bring an environment up and run a command in it.

        Raises EnvStartFailed; ConfigError for a limit that cannot be kept here.
        """
        async with self._lock:
            run = await self._run_directory()
            sandbox = await self._choose_sandbox(run)
        if (refusal := sandbox.refusal(spec.workdir)) is not None:
            raise EnvStartFailed(f"workdir {spec.workdir!r}: {refusal}")
        env = self._env(sandbox, run, spec, ident=f"env-{next(self._serial)}")
        await self._bring_up(env)
        return env

    # --- leases -------------------------------------------------------------------------------

    def lease(self, env: LocalEnv) -> LocalLease:
        """Say how another process comes back to an environment."""
        return LocalLease(root=os.fspath(env.root), workdir=env.workdir, env=env.given)

    async def hold(self, lease: LocalLease, *, journal: str) -> None:
        """Let sweeps spare it, for a while after the death of this process. Raises EnvDied."""
        run = self._owned(Path(lease.root).parent)
        if run is None:
            raise EnvDied(f"{lease.root}: its run directory is not this builder's")
        until = self._runner.wall_time() + HELD_S
        async with self._lock:
            if run.held_until < until - RENEW_S:
                with _start_failures_named(run.path):
                    await self._runner.to_thread(run.hold, until, journal)

    async def attach(self, lease: LocalLease) -> LocalEnv:
        """Take over an environment of a dead process, at the place where it is. Raises EnvDied."""
        async with self._lock:
            sandbox = await self._choose_sandbox(await self._run_directory())
            run = await self._adopt(Path(lease.root).parent)
        root = Path(lease.root)
        if not await self._runner.to_thread(os.path.isdir, root):
            raise EnvDied(f"{root}: it is gone")
        await end_leftovers(root, self._runner)
        spec = ContainerSpec(workdir=lease.workdir, env=lease.env)
        return self._env(sandbox, run, spec, ident=root.name)

    async def release(self, lease: LocalLease) -> None:
        """Remove an environment that nobody will attach to."""
        root = Path(lease.root)
        with suppress(EnvDied):
            async with self._lock:
                await self._adopt(root.parent)
            await end_leftovers(root, self._runner)
            await self._runner.to_thread(remove_tree, root)

    async def _adopt(self, path: Path) -> RunDirectory:
        run = self._owned(path)
        if run is None:
            try:
                run = await self._runner.to_thread(RunDirectory.adopt, path)
            except OSError as error:
                raise EnvDied(f"{path}: cannot be taken over: {error.strerror}") from error
            self._adopted[path] = run
        return run

    def _owned(self, path: Path) -> RunDirectory | None:
        if self._run is not None and self._run.path == path:
            return self._run
        return self._adopted.get(path)

    async def close(self) -> None:
        """End the supervisor and remove the run directories. Idempotent."""
        async with self._lock:
            if self._supervision is not None:
                await self._supervision.close()
            runs = [*self._adopted.values(), *([self._run] if self._run is not None else [])]
            self._run = None
            for run in runs:
                await end_leftovers(run.path, self._runner)
                await self._runner.to_thread(run.remove)
            self._adopted.clear()
            if runs:  # a run that is over now may have had other processes before this one
                await self._runner.to_thread(sweep_scratch, runs[0].path.parent, kill_leftovers)
        self._own_runner.close()

    async def _run_directory(self) -> RunDirectory:
        if self._run is None:
            scratch = self._config.scratch_dir or default_scratch()
            with _start_failures_named(scratch):
                self._run = await shielded(self._make_run_directory(scratch))
        return self._run

    async def _make_run_directory(self, scratch: Path) -> RunDirectory:
        """Make it and keep hold of it, also when nobody waits for it any more."""
        create = RunDirectory.create
        self._run = run = await self._runner.to_thread(create, scratch, before=kill_leftovers)
        self._supervision = Supervision(self._runner, directory=run.path)
        return run

    def _env(
        self, sandbox: Sandbox, run: RunDirectory, spec: ContainerSpec, *, ident: str
    ) -> LocalEnv:
        assert self._supervision is not None
        return LocalEnv(
            name=f"{self._config.name}-{run.path.name.removeprefix(PREFIX)}-{ident}",
            config=self._config,
            layout=Layout(root=run.path / ident, workdir=spec.workdir.rstrip("/") or "/"),
            sandbox=sandbox,
            given=spec.env,
            supervision=self._supervision,
            runner=self._runner,
        )

    async def _bring_up(self, env: LocalEnv) -> None:
        """Make its directories and run a command. Leaves nothing when it raises."""
        try:
            with _start_failures_named(env.root):
                await shielded(env.create())
            await env.execute("true", timeout_s=START_TIMEOUT_S, check=True)
        except (EnvDied, CommandFailed) as error:
            await env.stop()
            raise EnvStartFailed(f"{env.name}: {error}") from error
        except BaseException:
            await env.stop()
            raise

    async def _choose_sandbox(self, run: RunDirectory) -> Sandbox:
        """Try bubblewrap once, by running it; warn once where there is none."""
        if self._sandbox is None:
            choice = self._config.sandbox
            fault = "it was configured so"
            if choice is not SandboxChoice.NONE:
                self._sandbox, fault = await self._try_bubblewrap(run)
            if self._sandbox is None and choice is SandboxChoice.BUBBLEWRAP:
                raise EnvStartFailed(f"sandbox: bubblewrap: {fault}")
            if self._sandbox is None:
                self._sandbox = self._no_sandbox(fault)
        return self._sandbox

    def _no_sandbox(self, fault: str) -> Sandbox:
        if self._config.pids_limit is not None:
            raise ConfigError("pids_limit: needs bubblewrap; leave it out or use containers")
        log.warning(
            "commands run WITHOUT A SANDBOX (%s): they can do to this machine whatever this user "
            "can, the network included. Install bubblewrap, or use containers.",
            fault,
        )
        return NoSandbox(bash=_bash())

    async def _try_bubblewrap(self, run: RunDirectory) -> tuple[Sandbox | None, str]:
        if (bwrap := find_program("bwrap")) is None:
            return None, "bwrap is not installed (Debian: apt-get install bubblewrap)"
        if self._config.pids_limit is not None and os.getuid() == 0:
            raise ConfigError("pids_limit: Linux does not limit root; use another user")
        sandbox = Bubblewrap(
            bwrap=bwrap,
            bash=_bash(),
            network=self._config.network,
            pids_limit=self._config.pids_limit,
            shown=self._config.read_only_paths,
            hidden=(*self._config.hidden_paths, run.path.parent),
            shm_bytes=await self._shm_bytes(bwrap),
        )
        probe = self._env(sandbox, run, ContainerSpec(), ident="probe")
        try:
            await self._bring_up(probe)
        except EnvStartFailed as error:
            return None, str(error)
        await probe.stop()
        return sandbox, ""

    async def _shm_bytes(self, bwrap: str) -> int | None:
        """Keep /dev/shm to the memory limit, where bubblewrap can."""
        limit = self._config.memory_limit_bytes
        if limit is not None and not await self._runner.to_thread(can_limit_tmpfs, bwrap):
            log.warning("memory_limit_bytes: does not bind /dev/shm: needs bubblewrap 0.7 or newer")
            return None
        return limit


@contextmanager
def _start_failures_named(directory: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvStartFailed(
            f"scratch directory {directory}: {error.strerror or error}; it must be writable and "
            "have room"
        ) from error


def _bash() -> str:
    if (bash := find_program("bash")) is None:
        raise EnvStartFailed("bash: not found in PATH")
    return bash
