"""From configuration to limits: what is sent beyond the slots, and what may start ahead."""

from __future__ import annotations

import asyncio

import pytest
from world import World, turns

from agentflow.config import RolloutConfig
from executors.scheduling import make_limits


@pytest.mark.parametrize(("ahead", "sent"), [(0.0, 40), (0.05, 42), (0.1, 44)])
def test_submit_ahead_is_a_share_of_the_slots(ahead: float, sent: int) -> None:
    """G and 5 to 10 % more generations are with a server that has a queue of its own."""
    config = RolloutConfig(max_concurrency=64, gen_concurrency=40, submit_ahead=ahead)
    assert make_limits(config).generations == sent


async def test_what_is_sent_ahead_is_really_with_the_engine() -> None:
    """With 20 slots and 10 % ahead, 22 requests are in flight at once, and never more."""
    world = World(
        tasks=10,
        n=4,
        max_concurrency=40,
        gen_concurrency=20,
        start_concurrency=40,
        submit_ahead=0.1,
    )
    most = 0

    async def watch() -> None:
        nonlocal most
        while True:
            most = max(most, int(world.worker.gauges()["generating"]))
            await turns(1)

    async with asyncio.timeout(60):
        await world.run(watch)
    assert most == 22
    await world.close()
    world.check_closed()
