"""Ground: what an engine has ready before a container can start: a sweep, images, the helper."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.errors import EnvStartFailed
from agentflow.swe.environment.docker.errors import EngineRefused, EngineSilent, EngineUnavailable
from agentflow.swe.environment.docker.helper import MACHINES
from agentflow.swe.environment.docker.sweep import sweep
from agentflow.swe.environment.docker.volume import ensure_helper_volume

if TYPE_CHECKING:
    from agentflow.protocols import Runner
    from agentflow.swe.environment.docker.config import DockerConfig
    from agentflow.swe.environment.docker.engine import Engine
    from agentflow.swe.environment.docker.images import Image, Images
    from agentflow.swe.environment.docker.launch import Launcher
    from agentflow.swe.environment.docker.leases import LeaseBook


class Ground:
    """Prepares one engine, each thing on its first use."""

    def __init__(
        self,
        engine: Engine,
        config: DockerConfig,
        *,
        book: LeaseBook,
        images: Images,
        launcher: Launcher,
        runner: Runner,
    ) -> None:
        self._engine = engine
        self._config = config
        self._book = book
        self._images = images
        self._launcher = launcher
        self._runner = runner
        self._preparing = asyncio.Lock()
        self._volumes: dict[str, str | None] = {}
        self.facts: dict[str, str] = {}
        """What the engine says about itself; empty before it was asked."""

    async def image(self, name: str) -> Image:
        """Find an image, and on the first one prepare the engine."""
        image = await self._images.find(name)
        async with self._preparing:
            if not self.facts:
                try:
                    self.facts = await self._greet_engine()
                except EngineSilent as error:
                    raise EngineUnavailable(str(error)) from error
        return image

    async def _greet_engine(self) -> dict[str, str]:
        """Remove what dead owners left here, and read what the engine says about itself."""
        await sweep(self._engine, book=self._book, now=self._runner.wall_time())
        facts = await self._engine.facts()
        self._launcher.attaches = not facts.podman
        return {
            "system": "Linux",
            "machine": facts.machine,
            "release": facts.release,
            "version": facts.version,
        }

    async def volume(self, image: Image) -> str | None:
        """Return the helper's volume for an image; None asks for the shell session."""
        if self._config.session == "shell":
            return None
        async with self._preparing:
            if image.architecture not in self._volumes:
                try:
                    self._volumes[image.architecture] = await ensure_helper_volume(
                        self._engine,
                        image=image.id,
                        architecture=image.architecture,
                        now=self._runner.wall_time(),
                    )
                except EngineSilent as error:
                    raise EngineUnavailable(str(error)) from error
                except EngineRefused as error:
                    raise EnvStartFailed(f"the helper's volume: {error}") from error
        volume = self._volumes[image.architecture]
        if volume is None and self._config.session == "helper":
            known = ", ".join(sorted(MACHINES))
            raise EnvStartFailed(
                f"session 'helper': none for architecture {image.architecture!r} (only {known});"
                " 'auto' uses the shell there"
            )
        return volume

    def forget_volume(self, image: Image) -> None:
        """Look again for the helper's volume: it was removed."""
        self._volumes.pop(image.architecture, None)
