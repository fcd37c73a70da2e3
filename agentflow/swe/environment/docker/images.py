"""Images: what the engine knows of one, fetched once where it is missing."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from agentflow.swe.environment.docker.errors import (
    EngineRefused,
    EngineSilent,
    EngineUnavailable,
    ImageMissing,
)

if TYPE_CHECKING:
    from agentflow.swe.environment.docker.engine import Engine

log = logging.getLogger(__name__)

OURS = "agentflow-swe"
"""Repository of the images that we build; no registry has them."""
PULLS = 2
"""At once: more share the same line and the same disk."""
TRIES = 2
PULL_S = 1800.0
"""For one try; the engine goes on by itself after that, so that the next one finds more there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image on the engine."""

    id: str
    """Its digest, which pins it: containers are made from this, not from a tag that may move."""
    architecture: str


class Images:
    """Finds images by name; each is looked up, and pulled, once."""

    def __init__(self, engine: Engine, *, pull: Literal["never", "missing"]) -> None:
        self._engine = engine
        self._pull = pull
        self._found: dict[str, Image] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._pulls = asyncio.Semaphore(PULLS)

    async def find(self, name: str) -> Image:
        """Return the image `name`. Raises ImageMissing or EngineUnavailable."""
        async with self._locks[name]:
            if name not in self._found:
                self._found[name] = await self._look_up(name)
            return self._found[name]

    def forget(self, name: str) -> None:
        """Look it up anew next time: the engine said that it has it no more."""
        self._found.pop(name, None)

    async def _look_up(self, name: str) -> Image:
        try:
            facts = await self._engine.image(name)
            if facts is None and self._may_pull(name):
                await self._fetch(name)
                facts = await self._engine.image(name)
        except EngineSilent as error:
            raise EngineUnavailable(str(error)) from error
        except EngineRefused as error:
            raise ImageMissing(f"image {name!r}: {error}") from error
        if facts is None:
            raise ImageMissing(f"image {name!r}: the engine has none; {self._remedy(name)}")
        return Image(id=str(facts["Id"]), architecture=str(facts["Architecture"]))

    def _may_pull(self, name: str) -> bool:
        return self._pull == "missing" and not name.startswith((f"{OURS}:", "sha256:"))

    @staticmethod
    def _remedy(name: str) -> str:
        if name.startswith(f"{OURS}:"):
            return "build it: python -m agentflow.swe.environment.docker.base_image"
        return "build or pull it first, or set `pull: missing`"

    async def _fetch(self, name: str) -> None:
        async with self._pulls:
            for attempt in range(TRIES):
                try:
                    async with asyncio.timeout(PULL_S):
                        await self._engine.pull(name)
                except (EngineRefused, EngineSilent, TimeoutError) as error:
                    log.warning("pull of %s failed (%d of %d): %s", name, attempt + 1, TRIES, error)
                    if isinstance(error, TimeoutError):
                        raise EngineRefused(f"no pull within {PULL_S:g} s", status=0) from error
                    if attempt + 1 == TRIES:
                        raise
                else:
                    return
