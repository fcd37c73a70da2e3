"""NaiveExecutor over a coordinator: slots, pauses, interruptions, bugs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest
from plugins import CharRenderer, new_sample

from agentflow.errors import PreprocessFailed, RolloutGenerationAborted
from agentflow.runner import AsyncioRunner
from agentflow.types import Cause, Ending
from executors.data.coordinator import DataCoordinator
from executors.naive import NaiveExecutor

if TYPE_CHECKING:
    from agentflow.types import RolloutSample

DONE = Ending(cause=Cause.SUBMITTED, phase="generation")


class Flow:
    """A rollout flow that waits to be let go, and counts how many run at once."""

    def __init__(self, *, interruptions: int = 0, full_at: int = 1) -> None:
        self.full_at = full_at
        self.go = asyncio.Event()
        self.full = asyncio.Event()
        self.running = self.most = self.started = 0
        self.interruptions = interruptions
        self.error: Exception | None = None

    async def __call__(self, sample: RolloutSample) -> RolloutSample:
        """Run one sample."""
        self.started += 1
        self.running += 1
        self.most = max(self.most, self.running)
        if self.running == self.full_at:
            self.full.set()
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        if self.interruptions:
            self.interruptions -= 1
            raise RolloutGenerationAborted
        sample.ending = DONE
        sample.responses = np.ones(3, np.int32)
        return sample


def make(flow: Flow, n: int, *, slots: int = 2) -> tuple[NaiveExecutor, list[RolloutSample]]:
    """Wire an executor over `n` new samples; the list gets what has ended."""
    ended: list[RolloutSample] = []
    source = DataCoordinator(runner=AsyncioRunner(), on_ended=ended.append)
    source.add(new_sample(f"s{i}") for i in range(n))
    source.finish()
    executor = NaiveExecutor(
        flow,  # type: ignore[arg-type]  # any callable of a sample serves
        source,
        renderer=CharRenderer(),
        max_concurrency=slots,
    )
    return executor, ended


async def test_every_sample_ends_once_within_the_slots() -> None:
    """All samples end, never more of them at a time than there are slots."""
    flow = Flow(full_at=3)
    executor, ended = make(flow, 7, slots=3)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.run())
        await flow.full.wait()
        flow.go.set()
    assert sorted(s.episode.uid for s in ended) == [f"s{i}" for i in range(7)]
    assert flow.most == 3


async def test_interrupted_samples_run_again() -> None:
    """A sample that goes to the partial queue is handed out again and ends once."""
    flow = Flow(interruptions=3)
    executor, ended = make(flow, 4)
    flow.go.set()
    await executor.run()
    assert len(ended) == 4
    assert flow.started == 7


async def test_a_pause_holds_new_samples_back() -> None:
    """While paused nothing starts; after the resume everything ends."""
    flow = Flow()
    executor, ended = make(flow, 2)
    executor.pause_dispatch()
    flow.go.set()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.run())
        for _ in range(10):
            await asyncio.sleep(0)
        assert flow.started == 0
        executor.resume_dispatch()
    assert len(ended) == 2


async def test_stop_ends_what_runs_and_starts_nothing_more() -> None:
    """After stop() the running samples end and the queued ones stay queued."""
    flow = Flow()
    executor, ended = make(flow, 5, slots=1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(executor.run())
        await flow.full.wait()
        executor.stop()
        flow.go.set()
    assert len(ended) == 1


async def test_a_bug_ends_the_run() -> None:
    """An unexpected exception cancels the other trajectories and is raised."""
    flow = Flow()
    flow.error = ZeroDivisionError("a bug")
    executor, ended = make(flow, 2)
    flow.go.set()
    with pytest.raises(ExceptionGroup) as raised:
        await executor.run()
    assert raised.group_contains(ZeroDivisionError)
    assert not ended
    assert flow.running == 0


async def test_a_typed_failure_becomes_a_fallback_sample() -> None:
    """A sample that fails before it has tokens comes back in a trainer's shape, masked."""
    flow = Flow()
    flow.error = PreprocessFailed("no such task")
    executor, ended = make(flow, 1)
    flow.go.set()
    await executor.run()
    (sample,) = ended
    assert sample.remove_sample
    assert sample.ending is not None
    assert sample.ending.message == "no such task"
    assert len(sample.prompts) == len(sample.responses) == len(sample.response_mask) == 1
    assert sample.response_mask.sum() == 0


async def test_a_validation_prompt_is_tokenised_first() -> None:
    """A validation sample that came as messages has its ids before it runs."""
    flow = Flow()
    flow.go.set()
    executor, _ = make(flow, 0)
    sample = new_sample()
    sample.validate = True
    sample.raw_prompt = [{"role": "user", "content": "hi"}]
    assert await executor.generate(sample) is sample
    assert sample.raw_prompt_ids.tolist() == [ord("h"), ord("i"), 1]
    assert sample.prompts is sample.raw_prompt_ids


def test_no_slots_is_refused() -> None:
    """A concurrency below one is named, with what would be right."""
    with pytest.raises(ValueError, match="max_concurrency is 0; it must be at least 1"):
        make(Flow(), 0, slots=0)
