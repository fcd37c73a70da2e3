"""Dispatch alone, over a source that hands out what the test says."""

from __future__ import annotations

import asyncio
import random
from collections import deque

import pytest
from world import turns

from agentflow.aio import shielded
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


class Line:
    """A source that has samples in a line, and knows where each one is."""

    def __init__(self) -> None:
        self.waiting = deque[RolloutSample]()
        self.out: set[EpisodeId] = set()
        """Leased, and wanted."""
        self.ended: list[EpisodeId] = []
        self.finished = False
        self.changed = asyncio.Event()

    def add(self, sample: RolloutSample) -> None:
        """Put one last."""
        self.waiting.append(sample)
        self.changed.set()

    async def get_sample(self) -> RolloutSample | None:
        """Wait for the next; None when none will come."""
        while not self.waiting and not self.finished:
            self.changed.clear()
            await self.changed.wait()
        if not self.waiting:
            return None
        sample = self.waiting.popleft()
        assert sample.episode not in self.out
        self.out.add(sample.episode)
        return sample

    async def put_data(self, sample: RolloutSample) -> bool:
        """Take one that has ended, where it is still wanted."""
        if sample.episode not in self.out:
            return False
        self.out.remove(sample.episode)
        self.ended.append(sample.episode)
        return True

    async def put_partial(self, sample: RolloutSample) -> bool:
        """Hand an interrupted one out again, before all others."""
        if sample.episode not in self.out:
            return False
        self.give_back(sample)
        return True

    def give_back(self, sample: RolloutSample) -> None:
        """Take one that was not begun."""
        self.out.discard(sample.episode)
        self.waiting.appendleft(sample)
        self.changed.set()

    def abandon(self, sample: RolloutSample) -> None:
        """See that it is nobody's."""
        assert sample.episode not in self.out


class Slots:
    """Episodes under way as a model has them, moved by chance."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.slots, self.judged = self.chance.randint(1, 3), self.chance.randint(0, 2)
        self.source = Line()
        room = Room(self.slots, judged=self.judged)
        self.dispatch = Dispatch(self.source, self.rollout, room=room, let_go=no_state)
        self.live: dict[EpisodeId, asyncio.Future[str]] = {}
        self.tasks: dict[EpisodeId, asyncio.Task[None] | None] = {}
        self.samples: dict[EpisodeId, RolloutSample] = {}
        self.at_judge: set[EpisodeId] = set()
        self.dropped: set[EpisodeId] = set()
        self.issued = 0

    async def rollout(self, sample: RolloutSample) -> None:
        """Do as the test says."""
        episode = sample.episode
        assert episode not in self.live
        self.live[episode] = asyncio.get_running_loop().create_future()
        self.tasks[episode], self.samples[episode] = asyncio.current_task(), sample
        try:
            told = await self.live[episode]
        finally:
            if self.chance.random() < 0.5:
                await shielded(turns(2))  # cleaning up takes a while
            self.at_judge.discard(episode)
            del self.live[episode]
        await (self.source.put_data if told == "end" else self.source.put_partial)(sample)

    def step(self) -> None:
        """Let one thing happen."""
        what = self.chance.choice(("issue", "end", "end", "interrupt", "judge", "judge", "drop"))
        what = self.chance.choice((what, what, what, "cancel", "pause", "resume", "resume"))
        awake = [e for e, told in self.live.items() if not told.done()]
        if what == "issue":
            self.issue()
        elif what in {"pause", "resume"}:
            (self.dispatch.pause if what == "pause" else self.dispatch.resume)()
        elif awake:
            self.move(self.chance.choice(awake), what)

    def issue(self) -> None:
        """Give the source another one."""
        self.issued += 1
        self.source.add(RolloutSample(episode=EpisodeId(uid=f"{self.issued}"), task={}))

    def move(self, episode: EpisodeId, what: str) -> None:
        """Let one that is under way do something."""
        if what == "judge":
            self.at_judge.add(episode)
            self.dispatch.is_judged(episode)
        elif what == "drop":
            self.source.out.discard(episode)
            self.dropped.add(episode)
            self.dispatch.withdraw(self.samples[episode])
        elif what == "cancel":
            task = self.tasks[episode]
            assert task is not None
            task.cancel()
        else:
            self.live[episode].set_result(what)
        if self.chance.random() < 0.3:  # heard of twice, or of one that has ended meanwhile
            self.dispatch.is_judged(episode)
            self.at_judge.add(episode)

    def check(self) -> None:
        """No slot is lost and none is there twice."""
        judged = len(self.at_judge & self.live.keys())
        room = self.slots + min(judged, self.judged)
        assert len(self.live) <= room
        assert self.dispatch.running == len(self.live)
        if self.source.waiting and not self.dispatch.paused:
            assert len(self.live) == room


@pytest.mark.parametrize("first", range(0, 200, 50))
async def test_no_slot_is_lost_or_there_twice_whatever_becomes_of_episodes(first: int) -> None:
    """Ended, interrupted and begun again, judged, withdrawn, cancelled, held back by pauses."""
    for seed in range(first, first + 50):
        slots = Slots(seed)
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            running = tasks.create_task(slots.dispatch.run())
            for _ in range(60):
                for _ in range(slots.chance.randint(1, 3)):
                    slots.step()
                await turns(slots.chance.choice((0, 1, 12)))
                if slots.chance.random() < 0.5:
                    await turns(12)
                    slots.check()
            slots.dispatch.resume()
            for _ in range(slots.slots + slots.judged + 1):
                slots.issue()
            while not running.done():
                await turns(12)
                slots.check()
                slots.source.finished = True
                slots.source.changed.set()
                for told in slots.live.values():
                    if not told.done():
                        told.set_result("end")
        assert len(slots.source.ended) + len(slots.dropped) == slots.issued
        assert not slots.source.out
