"""One episode through SWEAgentFlow and NaiveFlow: every way it can end."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING

import pytest
from plugins import (
    AgentBuilder,
    Engine,
    EnvBuilder,
    RuntimeBuilder,
    access,
    new_sample,
)

from agentflow.errors import EngineDied, GenerationAborted, RolloutGenerationAborted
from agentflow.naive_flow import NaiveFlow
from agentflow.runner import AsyncioRunner
from agentflow.swe.flow import SWEAgentFlow
from agentflow.types import Cause, SWERolloutResult

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def runner() -> Iterator[AsyncioRunner]:
    """Give a runner and end its threads."""
    runner = AsyncioRunner()
    yield runner
    runner.close()


class Parts:
    """The parts of a flow, to be bent by a test before the flow is made."""

    def __init__(self, runner: AsyncioRunner) -> None:
        self.runner = runner
        self.engine = Engine()
        self.envs = EnvBuilder()
        self.agents = AgentBuilder()
        self.runtimes = RuntimeBuilder()

    def flow(self) -> SWEAgentFlow:
        """Wire them."""
        return SWEAgentFlow(
            self.agents, self.envs, self.runtimes, access(self.engine), runner=self.runner
        )


@pytest.fixture
def parts(runner: AsyncioRunner) -> Parts:
    """Give parts that work."""
    return Parts(runner)


async def test_submitted_episode_is_judged_in_a_second_environment(parts: Parts) -> None:
    """A submission is scored in a fresh environment, and both are gone afterwards."""
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert sample.rewards == 1.0
    assert sample.ending is not None
    assert sample.ending.cause is Cause.SUBMITTED
    assert not sample.remove_sample
    assert parts.envs.started == 2
    assert not parts.envs.live
    assert sample.facts.patch == "a patch"
    assert sample.facts.turns == 2


async def test_the_judges_image_is_the_episodes_by_its_digest(parts: Parts) -> None:
    """A tag that moves while an episode runs changes no score; the sample says what it was."""
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert parts.envs.images == ["", "sha256:1"]
    assert sample.facts.image == "sha256:1"


async def test_arrays_are_aligned(parts: Parts) -> None:
    """Ids, mask, log-probs and versions have the response's length, prompts come before."""
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert bytes(sample.prompts.tolist()) == b"task\x01"
    assert bytes(sample.responses.tolist()) == b"ok\x01ok\x01ok\x01"
    assert sample.response_mask.tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]
    assert sample.rollout_log_prob.tolist() == [-0.5] * 3 + [0.0] * 3 + [-0.5] * 3
    assert sample.weight_versions.tolist() == [0] * 3 + [-1] * 3 + [0] * 3


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        (SWERolloutResult.SUBMIT, 1.0),
        (SWERolloutResult.EXCEED, 0.0),
        (SWERolloutResult.FAILURE, 0.0),
    ],
)
async def test_only_a_submission_is_judged(
    parts: Parts, result: SWERolloutResult, reward: float
) -> None:
    """An agent that ran into a limit or failed scores 0 without a verdict, and counts."""
    parts.agents.whole = result
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert sample.rewards == reward
    assert not sample.remove_sample
    assert parts.envs.started == (2 if result is SWERolloutResult.SUBMIT else 1)


async def test_failed_start_is_aborted_with_its_cause(parts: Parts) -> None:
    """The reason of a failed start reaches the sample, which is masked."""
    parts.envs.fail = OSError("no space left")
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert sample.ending is not None
    assert sample.ending.cause is Cause.ENV_START_FAILED
    assert "no space left" in sample.ending.message
    assert sample.remove_sample
    assert sample.rewards == 0.0


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        ("build", Cause.PREPROCESS_FAILED),
        ("bootstrap", Cause.BOOTSTRAP_FAILED),
        ("diff", Cause.DIFF_FAILED),
        ("eval", Cause.EVAL_FAILED),
    ],
)
async def test_runtime_failure_is_named_and_leaves_nothing(
    parts: Parts, phase: str, cause: Cause
) -> None:
    """Whatever phase the runtime fails in, the cause says so and no environment stays."""
    parts.runtimes.failures[phase] = RuntimeError("broken")
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert sample.ending is not None
    assert sample.ending.cause is cause
    assert "broken" in sample.ending.message
    assert sample.rewards == 0.0
    assert sample.remove_sample
    assert not parts.envs.live


async def test_dead_engine_masks_the_sample_and_keeps_its_tokens(parts: Parts) -> None:
    """An engine that dies ends the episode; what was received is still accounted for."""
    parts.engine.failures = [EngineDied("gone")]
    sample = await NaiveFlow(parts.flow())(new_sample())
    assert sample.ending is not None
    assert sample.ending.cause is Cause.ENGINE_DIED
    assert sample.remove_sample
    assert sample.facts.generated_tokens == 1
    assert not parts.envs.live


async def test_interrupted_episode_goes_on_in_its_environment(parts: Parts) -> None:
    """An abort saves the partial turn; the next attempt continues it in the same container."""
    parts.engine.failures = [GenerationAborted("weights")]
    naive = NaiveFlow(parts.flow())
    sample = new_sample()
    with pytest.raises(RolloutGenerationAborted):
        await naive(sample)
    assert sample.partial_agent_data is not None
    assert len(parts.envs.live) == 1
    await naive(sample)
    assert bytes(sample.responses.tolist()).startswith(b"xok\x01")
    assert sample.rewards == 1.0
    assert sample.attempt == 1
    assert len(set(parts.engine.rids)) == len(parts.engine.rids)
    assert parts.envs.started == 2
    assert not parts.envs.live


async def test_interrupted_episode_restarts_clean_without_its_environment(parts: Parts) -> None:
    """On another worker the container is gone: the episode starts over and says what it lost."""
    parts.engine.failures = [GenerationAborted("weights")]
    first = parts.flow()
    sample = new_sample()
    with pytest.raises(RolloutGenerationAborted):
        await NaiveFlow(first)(sample)
    await first.close()
    assert not parts.envs.live
    await NaiveFlow(parts.flow())(sample)
    assert sample.restarted_tokens == 1
    assert bytes(sample.responses.tolist()).startswith(b"ok\x01")
    assert sample.rewards == 1.0


async def test_interrupted_sample_pickles(parts: Parts) -> None:
    """The partial state of an interrupted episode travels between processes."""
    parts.engine.failures = [GenerationAborted("weights")]
    flow = parts.flow()
    sample = new_sample()
    with pytest.raises(RolloutGenerationAborted):
        await NaiveFlow(flow)(sample)
    partial = sample.partial_agent_data
    assert partial is not None
    partial.m.runtime = None  # the plug-in holds its builder
    copy = pickle.loads(pickle.dumps(partial))
    assert copy.record.ids.tolist() == partial.record.ids.tolist()
    await flow.close()


async def test_cancellation_removes_the_environment(parts: Parts) -> None:
    """A cancelled episode leaves no environment behind."""
    parts.envs.hang_commands = True
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(NaiveFlow(parts.flow())(new_sample()))
        await parts.envs.hanging.wait()
        assert parts.envs.live
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not parts.envs.live


async def test_a_bug_is_raised_and_leaves_no_environment(parts: Parts) -> None:
    """An unexpected error is not turned into data."""
    parts.engine.failures = [ZeroDivisionError("a bug")]
    with pytest.raises(ZeroDivisionError):
        await NaiveFlow(parts.flow())(new_sample())
    assert not parts.envs.live
