"""Launch: bring one container up, with a session that answers, or leave nothing behind."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.errors import EnvStartFailed, EpisodeError
from agentflow.swe.environment.docker import helper
from agentflow.swe.environment.docker.container import Container
from agentflow.swe.environment.docker.errors import (
    EngineRefused,
    EngineSilent,
    EngineUnavailable,
    HelperGone,
    StartTimedOut,
    StreamLost,
)
from agentflow.swe.environment.docker.owner import (
    BUILDER_LABEL,
    EXPIRES_LABEL,
    OWNER_LABEL,
    RUN_LABEL,
    myself,
)
from agentflow.swe.environment.docker.session import HelperSession, Session
from agentflow.swe.environment.docker.shell_session import SHELL, ShellSession, pid_1
from agentflow.swe.environment.docker.side_sessions import SideBySide

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.protocols import Runner
    from agentflow.swe.environment.docker.config import DockerConfig
    from agentflow.swe.environment.docker.engine import Engine
    from agentflow.swe.environment.docker.images import Image
    from agentflow.swe.environment.docker.nursery import Nursery


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A container that runs, and the session that answers in it."""

    container: Container
    session: Session
    image: Image


class Launcher:
    """Makes containers after one configuration."""

    def __init__(
        self,
        engine: Engine,
        config: DockerConfig,
        *,
        nursery: Nursery,
        runner: Runner,
        run_id: str | None = None,
    ) -> None:
        self._engine = engine
        self._config = config
        self._nursery = nursery
        self._runner = runner
        self.builder = secrets.token_hex(8)
        """Marks every container made here."""
        self._run_id = run_id or self.builder
        self.attaches = True
        """False for Podman, which ends the stdin of PID 1 with the first connection: its sessions
        run beside PID 1, like those of the shell."""

    def container(self, name: str, *, shell: bool) -> tuple[Container, Session]:
        """Return our end of a container of that name, which may exist or not."""
        container = Container(
            self._engine, name, reconnect_s=self._config.reconnect_s, runner=self._runner
        )
        if shell:
            container.exec_argv = SHELL
            return container, ShellSession(container)
        main = HelperSession(container) if self.attaches else self._side(name)
        return container, SideBySide(main, lambda: self._side(name))

    def _side(self, name: str) -> HelperSession:
        beside = Container(
            self._engine, name, reconnect_s=self._config.reconnect_s, runner=self._runner
        )
        beside.exec_argv = (helper.PATH, "side")
        return HelperSession(beside, durable=False)

    async def launch(self, image: Image, volume: str | None, labels: Mapping[str, str]) -> Launched:
        """Create, start, connect. Raises EnvStartFailed, and then nothing of it stays."""
        name = f"agentflow-{secrets.token_hex(8)}"
        container, session = self.container(name, shell=volume is None)
        settings, host = self._settings(image, volume, labels)
        creating = self._nursery.start(
            self._engine.create({**settings, "name": name}, host), name=f"create {name}"
        )
        try:
            async with asyncio.timeout(self._config.start_timeout_s):
                await asyncio.shield(creating)
                await self._engine.start(name)
                await session.open()
        except BaseException as error:
            self._nursery.start(_undo(container, session, creating), name=f"remove {name}")
            raise _start_error(error, name, self._config.start_timeout_s) from error
        return Launched(container=container, session=session, image=image)

    def _settings(
        self, image: Image, volume: str | None, labels: Mapping[str, str]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what the SDK's `create_container` and `create_host_config` take."""
        config = self._config
        serve = [helper.PATH, "serve", str(config.ttl_s)]
        expires_at = int(self._runner.wall_time()) + config.ttl_s
        settings = {
            "image": image.id,
            "entrypoint": list(pid_1(config.ttl_s)) if volume is None else serve,
            "command": [],
            "user": config.user,
            "detach": True,  # or the engine closes stdin when the first connection ends
            "stdin_open": True,
            "labels": {
                **labels,
                RUN_LABEL: self._run_id,
                OWNER_LABEL: myself(),
                BUILDER_LABEL: self.builder,
                EXPIRES_LABEL: str(expires_at),
            },
            "runtime": config.runtime,
        }
        host = {
            "binds": [f"{volume}:{helper.MOUNT}:ro"] if volume else None,
            "mem_limit": config.memory_bytes,
            "memswap_limit": config.memory_bytes,
            "nano_cpus": round(config.cpus * 1e9) if config.cpus else None,
            "pids_limit": config.pids,
            "network_mode": config.network,
            "cap_drop": ["ALL"],
            "cap_add": list(config.cap_add) or None,
            "security_opt": ["no-new-privileges:true"],
            "read_only": config.read_only,
            "tmpfs": dict(config.tmpfs) or None,
            "log_config": {"type": "none"},
            "ulimits": [
                {"name": name, "soft": value, "hard": value}
                for name, value in {"core": 0, **config.ulimits}.items()
            ],
        }
        return settings, host


async def _undo(container: Container, session: Session, creating: asyncio.Task[str]) -> None:
    """Remove what a failed start made, also what the engine makes only after we gave up."""
    await asyncio.wait({creating})
    await session.close()
    await container.remove()


def _start_error(error: BaseException, name: str, limit_s: float) -> BaseException:
    """Tell apart why a start failed; what is no failure of a start passes through."""
    match error:
        case TimeoutError():
            return StartTimedOut(f"container {name} was not up within {limit_s:g} s")
        case EngineSilent():
            return EngineUnavailable(str(error))
        case EngineRefused() if helper.PATH in str(error):
            return HelperGone(f"container {name}: {error}")
        case EngineRefused() | StreamLost():
            return EnvStartFailed(f"container {name}: {error}")
        case EpisodeError() if not isinstance(error, EnvStartFailed):
            return EnvStartFailed(f"container {name}: {error}")
        case _:
            return error
