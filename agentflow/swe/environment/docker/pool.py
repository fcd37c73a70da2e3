"""Pool: containers made ahead, so that an episode's start is a hand-over.

Keeps `size` of them ready for each image in use and makes the next one when one is taken, beside
whatever else runs. A container is used once: reset is discarding it.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from typing import TYPE_CHECKING

from agentflow.errors import EpisodeError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agentflow.swe.environment.docker.images import Image
    from agentflow.swe.environment.docker.launch import Launched
    from agentflow.swe.environment.docker.nursery import Nursery

log = logging.getLogger(__name__)


class Pool:
    """Ready containers by image; `make` launches one under the limit on starts."""

    def __init__(
        self, size: int, make: Callable[[Image], Awaitable[Launched]], nursery: Nursery
    ) -> None:
        self._size = size
        self._make = make
        self._nursery = nursery
        self._ready: defaultdict[str, deque[Launched]] = defaultdict(deque)
        self._coming: defaultdict[str, int] = defaultdict(int)
        self._closed = False
        self._hits = self._misses = 0

    async def take(self, image: Image) -> Launched | None:
        """Return a container that is ready and answers, None when there is none."""
        if not self._size:
            return None
        found = None
        while found is None and self._ready[image.id]:
            candidate = self._ready[image.id].popleft()
            try:
                await candidate.container.ensure_running()
            except EpisodeError as error:
                log.info("a ready container is gone: %s", error)
                self._discard(candidate)
            else:
                found = candidate
        self._hits += found is not None
        self._misses += found is None
        self.fill(image)
        return found

    def fill(self, image: Image) -> None:
        """Begin to make what is missing."""
        missing = self._size - len(self._ready[image.id]) - self._coming[image.id]
        for _ in range(0 if self._closed else missing):
            self._coming[image.id] += 1
            self._nursery.start(self._add(image), name="fill the pool")

    async def _add(self, image: Image) -> None:
        try:
            made = await self._make(image)
        except EpisodeError as error:
            log.warning("no container for the pool: %s", error)  # the next start will say it too
            return
        finally:
            self._coming[image.id] -= 1
        if self._closed:
            self._discard(made)
        else:
            self._ready[image.id].append(made)

    def _discard(self, launched: Launched) -> None:
        self._nursery.start(_remove(launched), name="discard a ready container")

    def close(self) -> None:
        """Discard what is ready and what still comes; the nursery ends it. Idempotent."""
        self._closed = True
        for ready in self._ready.values():
            while ready:
                self._discard(ready.pop())

    def gauges(self) -> dict[str, float]:
        """Containers ready and coming, starts served and not."""
        return {
            "ready": sum(map(len, tuple(self._ready.values()))),  # another thread may be looking
            "coming": sum(tuple(self._coming.values())),
            "hits": self._hits,
            "misses": self._misses,
        }


async def _remove(launched: Launched) -> None:
    await launched.session.close()
    await launched.container.remove()
