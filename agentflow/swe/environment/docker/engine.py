"""Engine: the control plane, which is the `docker` SDK in threads, with its errors told apart.

Every method is one request (or two) and blocks a thread, never the loop. `EngineRefused` is an
answer, `EngineSilent` is none. Makes no decision about episodes.
"""

from __future__ import annotations

import asyncio
import logging
import os
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.swe.environment.docker.address import SOCKET, Address
from agentflow.swe.environment.docker.errors import EngineRefused, EngineSilent
from agentflow.swe.environment.docker.stream import RawStream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentflow.protocols import Runner

log = logging.getLogger(__name__)

CONNECTIONS = 64
"""As many as the runner has threads; the SDK's default of 10 would open and close the rest."""
NOT_FOUND = 404
REMOVALS, REMOVAL_PAUSE_S = 50, 0.1
"""Podman refuses to remove a container that ends at this moment; its state is right soon after."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """What the engine says about a container."""

    id: str
    running: bool
    paused: bool
    exit_code: int
    out_of_memory: bool
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What an engine says about itself."""

    podman: bool
    machine: str
    release: str
    """Of the kernel."""
    version: str
    """Of the operating system."""


class Engine:
    """One engine, by its address. Connects on first use."""

    def __init__(self, *, host: str | None, timeout_s: float, runner: Runner) -> None:
        self._docker = _import_sdk()
        self.host = host or os.environ.get("DOCKER_HOST") or f"unix://{SOCKET}"
        self.address = Address.parse(self.host, os.environ)
        self._timeout_s = timeout_s
        self._runner = runner
        self._client: Any = None
        self._connecting = asyncio.Lock()

    async def call(self, request: Callable[[Any], Any]) -> Any:
        """Run `request(client)` in a thread. Raises EngineRefused or EngineSilent."""
        async with self._connecting:
            if self._client is None:
                self._client = await self._runner.to_thread(self._answer, self._connect)
        client = self._client
        return await self._runner.to_thread(self._answer, lambda: request(client))

    def _answer(self, request: Callable[[], Any]) -> Any:
        requests = self._docker.api.client.requests
        errors = self._docker.errors
        try:
            return request()
        except errors.APIError as error:
            message = str(error.explanation or error)
            raise EngineRefused(message, status=error.status_code or 0) from error
        except (requests.exceptions.RequestException, errors.DockerException, OSError) as error:
            raise EngineSilent(f"engine at {self.host}: {error}") from error

    def _connect(self) -> Any:
        from agentflow.swe.environment.docker.client import Client  # noqa: PLC0415  # optional

        self.address.knock(timeout_s=self._timeout_s)
        certificates = os.environ if self.address.tls is not None else {}
        settings = {**certificates, "DOCKER_HOST": self.address.url}
        return Client(
            **self._docker.utils.kwargs_from_env(environment=settings),
            timeout=self._timeout_s,
            max_pool_size=CONNECTIONS,
            version="auto",
        )

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        client, self._client = self._client, None
        if client is not None:
            await self._runner.to_thread(client.close)

    async def facts(self) -> EngineFacts:
        """Ask the engine what it is, and what it runs on."""
        info = await self.call(lambda client: client.info())
        version = await self.call(lambda client: client.version())
        parts = [str(part.get("Name", "")) for part in version.get("Components") or ()]
        return EngineFacts(
            podman=any(name.startswith("Podman") for name in parts),
            machine=str(info.get("Architecture", "")),
            release=str(info.get("KernelVersion", "")),
            version=str(info.get("OperatingSystem", "")),
        )

    # --- containers ---------------------------------------------------------------------------

    async def create(self, settings: Mapping[str, Any], host: Mapping[str, Any]) -> str:
        """Create a container and return its id; `host` is the SDK's `create_host_config`."""

        def request(client: Any) -> str:
            config = client.create_host_config(**host)
            return str(client.create_container(host_config=config, **settings)["Id"])

        return str(await self.call(request))

    async def start(self, container: str) -> None:
        """Start it."""
        await self.call(lambda client: client.start(container))

    async def state(self, container: str) -> ContainerState | None:
        """Describe it, None when the engine has none of that name."""
        try:
            info = await self.call(lambda client: client.inspect_container(container))
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise
        state = info["State"]
        return ContainerState(
            id=info["Id"],
            running=bool(state["Running"]),
            paused=bool(state.get("Paused")),
            exit_code=int(state["ExitCode"]),
            out_of_memory=bool(state.get("OOMKilled")),
            error=str(state.get("Error") or ""),
        )

    async def remove(self, container: str) -> None:
        """Kill and remove it with its volumes; well when it is gone already."""
        for left in reversed(range(REMOVALS)):
            try:
                await self.call(lambda c: c.remove_container(container, force=True, v=True))
            except EngineRefused as error:
                if error.status == NOT_FOUND or "already in progress" in str(error):
                    return
                if not left or "state improper" not in str(error):
                    raise
                await asyncio.sleep(REMOVAL_PAUSE_S)
            else:
                return

    async def pause(self, container: str) -> None:
        """Freeze its processes."""
        await self.call(lambda client: client.pause(container))

    async def unpause(self, container: str) -> None:
        """Thaw its processes."""
        await self.call(lambda client: client.unpause(container))

    async def commit(self, container: str, labels: Mapping[str, str]) -> str:
        """Make an image of its file system and return the image's id, as `image` has it."""
        changes = [f"LABEL {name}={value}" for name, value in labels.items()]

        def request(client: Any) -> str:
            made = client.commit(container, changes=changes)["Id"]
            return str(client.inspect_image(made)["Id"])

        return str(await self.call(request))

    async def containers(self, label: str) -> Sequence[Mapping[str, Any]]:
        """List all containers that carry `label` (`name` or `name=value`), stopped ones too."""
        found = await self.call(lambda c: c.containers(all=True, filters={"label": label}))
        return list(found)

    async def oom_events(self, container: str, *, within_s: float) -> int:
        """Count the `oom` events of the last seconds, by the engine's own clock."""

        def request(client: Any) -> int:
            now = datetime.fromisoformat(client.info()["SystemTime"]).timestamp()
            found = client.events(
                since=int(now - within_s),
                until=int(now) + 1,
                decode=True,
                filters={"container": container, "event": "oom"},
            )
            return sum(1 for _ in found)

        return int(await self.call(request))

    # --- images and volumes -------------------------------------------------------------------

    async def image(self, name: str) -> Mapping[str, Any] | None:
        """Describe an image, None when the engine has none of that name."""
        try:
            found: Mapping[str, Any] = await self.call(lambda client: client.inspect_image(name))
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    async def remove_image(self, name: str) -> None:
        """Remove an image that nothing uses; one that something uses stays, for `clean`."""
        try:
            await self.call(lambda client: client.remove_image(name))
        except EngineRefused as error:
            log.debug("image %s stays: %s", name, error)

    async def pull(self, name: str) -> None:
        """Fetch an image from its registry."""
        repository, tag = self._docker.utils.parse_repository_tag(name)

        def request(client: Any) -> None:
            progress = client.pull(repository, tag=tag or "latest", stream=True, decode=True)
            for step in progress:  # what goes wrong after the first layer is told here alone
                if "error" in step:
                    raise EngineRefused(str(step["error"]), status=0)

        await self.call(request)

    # --- streams ------------------------------------------------------------------------------

    async def attach(
        self, container: str, *, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> RawStream:
        """Connect to the stdin and stdout of PID 1. Raises StreamLost."""
        path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
        return await RawStream.open(self.address, path, received=received, lost=lost)

    async def create_exec(self, container: str, argv: Sequence[str]) -> str:
        """Prepare to run `argv` beside PID 1. Raises EngineRefused."""
        return str(
            await self.call(lambda c: c.exec_create(container, list(argv), stdin=True)["Id"])
        )

    async def exec_stream(
        self, process: str, *, received: Callable[[bytes], None], lost: Callable[[], None]
    ) -> RawStream:
        """Run what `create_exec` prepared and connect to it. Raises StreamLost."""
        body = {"Detach": False, "Tty": False}
        path = f"/exec/{process}/start"
        return await RawStream.open(self.address, path, body=body, received=received, lost=lost)

    async def exec_code(self, process: str) -> int | None:
        """Return the exit code of what `exec_stream` ran, None while it runs.

        Raises EngineRefused where the engine has forgotten it, as it does over a restart.
        """
        found = await self.call(lambda client: client.exec_inspect(process))
        return None if found["Running"] else int(found["ExitCode"])


def _import_sdk() -> Any:
    """Import the optional dependency. Raises ConfigError with the command that installs it."""
    try:
        import docker  # noqa: PLC0415  # optional: the light core runs without it
        import docker.errors  # noqa: PLC0415
        import docker.utils  # noqa: PLC0415
    except ImportError as error:
        raise ConfigError(
            "environment `docker` needs the Docker SDK: pip install 'agentflow-rl[docker]'"
        ) from error
    return docker
