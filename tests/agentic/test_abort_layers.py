"""AgenticExecutor and what a flow may raise: saved, saved by the executor, or a fallback."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from world import World

from agentflow.errors import EnvStartFailed, GenerationAborted, PreprocessFailed
from agentflow.outcomes import make_fallback
from agentflow.types import Cause, Ending, EpisodeId, RolloutSample
from executors.agentic import AgenticExecutor, AgenticSettings
from executors.data.coordinator import DataCoordinator
from executors.source import WorkerSource

if TYPE_CHECKING:
    from agentflow.swe.sample import SWESample
    from agentflow.types import SyncMode
    from priority.snapshot import PrioritySnapshot


@dataclass
class Flow:
    """A flow of somebody's own that fails where it is told to, once."""

    world: World
    in_preprocess: list[BaseException] = field(default_factory=list)
    in_submit: list[BaseException] = field(default_factory=list)
    partials: list[object] = field(default_factory=list)
    """What each submission went on from."""
    made: list[SWESample] = field(default_factory=list)
    given_up: list[SWESample] = field(default_factory=list)
    """Whose environments were to be removed."""
    progress = 0

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Make a flow's sample."""
        self.partials.append(sample.partial_agent_data)
        if self.in_preprocess:
            raise self.in_preprocess.pop(0)
        if sample.partial_agent_data is None:
            self.made.append(self.world.flow._build(sample))
        return self.made[-1]

    async def submit_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """End it, or fail."""
        if self.in_submit:
            raise self.in_submit.pop(0)
        make_fallback(dc_sample, Ending(cause=Cause.SUBMITTED, phase="generation"))

    async def give_up(self, sample: SWESample) -> None:
        """Take note."""
        self.given_up.append(sample)

    async def pause_generations(self, mode: SyncMode) -> None:
        """Nothing generates."""

    async def resume_generations(self) -> None:
        """Nothing was held back."""

    def use_snapshot(self, snapshot: PrioritySnapshot) -> None:
        """Nobody is ranked."""

    def gauges(self) -> dict[str, float]:
        """Nothing to tell."""
        return {}

    def whereabouts(self) -> list[str]:
        """Nobody is anywhere for long."""
        return []


async def ended(flow: Flow, *, max_attempts: int = 32) -> RolloutSample:
    """Run one sample through an executor over `flow`."""
    taken: list[RolloutSample] = []
    coordinator = DataCoordinator(runner=flow.world.runner, on_ended=taken.append)
    message = {"role": "user", "content": "fix it"}
    sample = RolloutSample(
        episode=EpisodeId(uid="a", replica_index=3),
        task={"instance_id": "a", "problem_statement": "fix it", "turns": 1},
        raw_prompt=[message],
    )
    coordinator.add([sample])
    coordinator.finish()
    executor = AgenticExecutor(
        flow,
        WorkerSource(coordinator, "w"),
        renderer=flow.world.access.renderer,
        runner=flow.world.runner,
        settings=AgenticSettings(window=1, max_attempts=max_attempts),
    )
    async with asyncio.timeout(10):
        await executor.run()
    coordinator.check()
    (one,) = taken
    assert (one.episode, one.raw_prompt) == (sample.episode, [message])
    return one


async def test_an_abort_that_the_flow_did_not_save_is_saved_by_the_executor() -> None:
    """The engine's own abort reached it: the episode goes on from the flow's sample."""
    flow = Flow(World(tasks=0), in_submit=[GenerationAborted("abort_all")])
    sample = await ended(flow)
    assert flow.partials == [None, flow.made[0]]
    assert (sample.attempt, sample.remove_sample, len(flow.made)) == (1, True, 1)
    assert sample.ending is not None
    assert sample.ending.cause is Cause.SUBMITTED


async def test_one_that_is_aborted_too_often_ends_as_a_fallback_with_its_cause() -> None:
    """Whatever raises it; its environment is removed."""
    aborts: list[BaseException] = [GenerationAborted("again")] * 9
    flow = Flow(World(tasks=0), in_submit=aborts)
    sample = await ended(flow, max_attempts=3)
    assert flow.given_up == [flow.made[-1]]
    assert sample.ending is not None
    assert (sample.ending.cause, sample.attempt) == (Cause.WEIGHT_SYNC, 3)
    assert sample.ending.message == "was interrupted 3 times"


@pytest.mark.parametrize(
    ("where", "error", "cause"),
    [
        ("in_preprocess", PreprocessFailed("no repository"), Cause.PREPROCESS_FAILED),
        ("in_preprocess", GenerationAborted("before there was a sample"), Cause.WEIGHT_SYNC),
        ("in_submit", EnvStartFailed("no image"), Cause.ENV_START_FAILED),
    ],
)
async def test_without_a_partial_state_the_sample_is_a_fallback_that_says_why(
    where: str, error: Exception, cause: Cause
) -> None:
    """Masked, in the shape that trainers accept, with identity, prompt and message."""
    flow = Flow(World(tasks=0))
    getattr(flow, where).append(error)
    sample = await ended(flow)
    assert sample.ending is not None
    assert (sample.ending.cause, sample.ending.message) == (cause, str(error))
    assert (sample.remove_sample, sample.rewards) == (True, 0.0)
    assert len(sample.responses) == len(sample.rollout_log_prob) == len(sample.prompts) == 1
    assert not sample.response_mask.any()
    assert sample.partial_agent_data is None
