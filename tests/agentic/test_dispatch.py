"""Dispatch alone, over a source that hands out what the test says."""

from __future__ import annotations

import asyncio

import pytest
from world import turns

from agentflow.types import EpisodeId, RolloutSample
from executors.dispatch import Dispatch
from executors.room import Room

EPISODE = EpisodeId(uid="t")


class Given:
    """A source of samples of one name, the next when the test puts it in."""

    def __init__(self) -> None:
        self.samples = asyncio.Queue[RolloutSample | None]()
        self.given_back = 0

    async def get_sample(self) -> RolloutSample | None:
        """Wait for the next."""
        return await self.samples.get()

    async def put_data(self, sample: RolloutSample) -> bool:
        """Refuse it: nothing here ends."""
        raise AssertionError(sample)

    async def put_partial(self, sample: RolloutSample) -> bool:
        """Refuse it."""
        raise AssertionError(sample)

    def give_back(self, sample: RolloutSample) -> None:
        """Count it."""
        self.given_back += 1

    def abandon(self, sample: RolloutSample) -> None:
        """Nothing is kept of it."""


async def no_state(sample: RolloutSample) -> None:
    """Fail: no sample keeps anything here."""
    raise AssertionError(sample)


async def test_one_withdrawn_as_it_ends_does_not_stop_the_next_of_its_name() -> None:
    """The trainer may issue a name again once it was delivered."""
    source, may_end, begun = Given(), asyncio.Event(), asyncio.Queue[RolloutSample]()

    async def rollout(sample: RolloutSample) -> None:
        await begun.put(sample)
        await may_end.wait()

    dispatch = Dispatch(source, rollout, room=Room(1), let_go=no_state)
    first, again = RolloutSample(episode=EPISODE, task={}), RolloutSample(episode=EPISODE, task={})
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(dispatch.run())
        source.samples.put_nowait(first)
        assert await begun.get() is first
        may_end.set()  # its task wakes before the loop hears of the next
        dispatch.withdraw(first)
        source.samples.put_nowait(again)
        assert await begun.get() is again
        source.samples.put_nowait(None)


@pytest.mark.parametrize("withdrawn", [True, False])
async def test_one_that_is_held_back_by_a_pause_is_given_back_or_not_begun(
    *, withdrawn: bool
) -> None:
    """It came while new ones were held back: a stop returns it, a withdrawal ends it."""
    source, begun = Given(), list[RolloutSample]()

    async def rollout(sample: RolloutSample) -> None:
        begun.append(sample)

    dispatch = Dispatch(source, rollout, room=Room(1), let_go=no_state)
    sample = RolloutSample(episode=EPISODE, task={})
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(dispatch.run())
        await turns(1)  # it waits for a sample now
        dispatch.pause()
        source.samples.put_nowait(sample)
        await turns(3)
        if withdrawn:
            dispatch.withdraw(sample)
            await turns(1)
            dispatch.resume()
            source.samples.put_nowait(None)
        else:
            dispatch.stop()
    assert begun == []
    assert source.given_back == (not withdrawn)
