"""Pulls are bounded, made once for all who wait, and tried again once: in virtual time."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, cast

import pytest

from agentflow.sim.clock import run_virtual
from agentflow.swe.environment.docker.errors import EngineRefused, ImageMissing
from agentflow.swe.environment.docker.images import PULLS, Images

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.swe.environment.docker.engine import Engine


class PaperEngine:
    """Has no image until it was pulled, which takes a second, or for ever."""

    def __init__(self, *, failures: int = 0, hang: bool = False) -> None:
        self.pulls: Counter[str] = Counter()
        self.at_once = self.most_at_once = 0
        self._failures, self._hang = failures, hang
        self._has: set[str] = set()

    async def image(self, name: str) -> Mapping[str, object] | None:
        """Describe it."""
        return {"Id": f"sha256:{name}", "Architecture": "amd64"} if name in self._has else None

    async def pull(self, name: str) -> None:
        """Fetch it."""
        self.pulls[name] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(float("1e9") if self._hang else 1)
        finally:
            self.at_once -= 1
        if self.pulls[name] <= self._failures:
            raise EngineRefused("toomanyrequests", status=500)
        self._has.add(name)


def images(engine: PaperEngine) -> Images:
    """Wire it."""
    return Images(cast("Engine", engine), pull="missing")


def test_one_pull_serves_all_who_wait() -> None:
    """However many start at once from one image."""
    engine = PaperEngine()

    async def main() -> None:
        found = images(engine)
        assert len({image.id for image in await asyncio.gather(*map(found.find, ["a"] * 9))}) == 1

    run_virtual(main())
    assert engine.pulls == {"a": 1}


def test_few_pulls_run_at_once() -> None:
    """They share one line and one disk."""
    engine = PaperEngine()

    async def main() -> None:
        await asyncio.gather(*map(images(engine).find, "abcdefgh"))

    run_virtual(main())
    assert (engine.most_at_once, engine.pulls.total()) == (PULLS, 8)


def test_a_pull_that_fails_is_tried_once_more() -> None:
    """A second failure is a missing image, with the registry's reason."""
    engine = PaperEngine(failures=1)
    run_virtual(images(engine).find("a"))
    assert engine.pulls == {"a": 2}
    refused = PaperEngine(failures=2)
    with pytest.raises(ImageMissing, match="toomanyrequests"):
        run_virtual(images(refused).find("a"))
    assert refused.pulls == {"a": 2}


def test_a_pull_that_hangs_ends() -> None:
    """A start never waits for a registry without end."""
    with pytest.raises(ImageMissing, match="no pull within"):
        run_virtual(images(PaperEngine(hang=True)).find("a"))
