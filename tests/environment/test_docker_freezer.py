"""A container is paused only while nothing runs in it, whatever comes while it is being paused."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

from agentflow.swe.environment.docker.errors import EngineSilent
from agentflow.swe.environment.docker.freezer import Freezer
from agentflow.swe.environment.docker.nursery import Nursery

if TYPE_CHECKING:
    from agentflow.swe.environment.docker.container import Container


class Paper:
    """A container and its engine on paper; a pause takes until it is told to be over."""

    name = "paper"

    def __init__(self) -> None:
        self.engine = self
        self.done: list[str] = []
        self.pausing = asyncio.Event()
        self.over = asyncio.Event()
        self.away = False

    async def ensure_running(self) -> None:
        """Come back, and thaw."""
        self.away = False
        await self.unpause(self.name)

    async def pause(self, _: str) -> None:
        """Begin, wait, and be paused."""
        self.pausing.set()
        await self.over.wait()
        self.done.append("pause")

    async def unpause(self, _: str) -> None:
        """Refuse what is not paused, as an engine does; fall silent when it is away."""
        if self.away:
            raise EngineSilent("away")
        assert self.done[-1] == "pause"
        self.done.append("unpause")


def frozen_soon(paper: Paper) -> tuple[Freezer, Nursery]:
    """Make a freezer that pauses at once."""
    nursery = Nursery()
    container = cast("Container", cast("Any", paper))
    return Freezer(container, after_s=0.0, nursery=nursery), nursery


async def test_a_command_that_comes_while_a_pause_is_under_way_waits_for_it() -> None:
    """And undoes it: the engine would refuse to unpause what is not paused yet."""
    paper = Paper()
    freezer, nursery = frozen_soon(paper)
    async with freezer.awake():
        pass
    await paper.pausing.wait()
    command = asyncio.ensure_future(run(freezer, paper))
    asyncio.get_running_loop().call_soon(paper.over.set)
    await command
    freezer.close()
    await nursery.wait()
    assert paper.done[:3] == ["pause", "unpause", "command"]


async def run(freezer: Freezer, paper: Paper) -> None:
    """Run a command."""
    async with freezer.awake():
        paper.done.append("command")


async def test_an_engine_that_is_away_is_waited_for_by_the_thaw() -> None:
    """A paused environment lives through a restart of its engine as any other does."""
    paper = Paper()
    paper.over.set()
    freezer, nursery = frozen_soon(paper)
    async with freezer.awake():
        pass
    await paper.pausing.wait()
    paper.away = True
    await run(freezer, paper)
    freezer.close()
    await nursery.wait()
    assert paper.done[:3] == ["pause", "unpause", "command"]


async def test_nothing_is_paused_under_a_command_or_after_the_end() -> None:
    """One of two commands that ends leaves the other in peace; a closed freezer freezes nothing."""
    paper = Paper()
    paper.over.set()
    freezer, nursery = frozen_soon(paper)
    async with freezer.awake():
        await run(freezer, paper)
        assert freezer.in_use
        await asyncio.gather(*(asyncio.sleep(0) for _ in range(5)))  # timers that are due run
        await nursery.wait()
        assert paper.done == ["command"]
        freezer.close()
    await asyncio.gather(*(asyncio.sleep(0) for _ in range(5)))
    await nursery.wait()
    assert paper.done == ["command"]
