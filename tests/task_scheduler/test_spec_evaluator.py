"""Section 4: the evaluator's life cycle and the classification of aborts."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
import numpy as np
import pytest
import scheduler_parts as parts

from agentflow import errors
from agentflow.errors import (
    ConfigError,
    ContainerKilled,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    EnvDied,
    EnvStartFailed,
    EpisodeError,
    RolloutGenerationAborted,
)
from agentflow.types import Blame, Cause, TerminationClass
from executors.task_scheduler import (
    NodeResource,
    PlacementPool,
    Resource,
    StoppingCriteria,
    classify_abort,
    classify_termination,
)
from executors.task_scheduler.group_stats import group_stats
from executors.task_scheduler.termination_summary import HandlerFailed, termination_summary

if TYPE_CHECKING:
    from agentflow.types import RolloutSample
    from executors.task_scheduler import AgentResult, RunContext


def raising(error: BaseException, *only: int) -> parts.Handler:
    """Make a handler that raises, for all samples or those replicas."""

    async def behave(sample: RolloutSample, _: object) -> None:
        sample.metadata["_termination_reason"] = "thinking"
        if not only or sample.episode.replica_index in only:
            raise error

    return parts.Handler(behave=behave)


async def ended(handler: parts.Handler, *, n: int = 1) -> list[RolloutSample]:
    """Run one task of `n` samples."""
    task = parts.task(n=n)
    await parts.scheduler(parts.spec(handler)).run_all([task])
    return task.samples


# --- execution --------------------------------------------------------------------------------


async def test_concurrency_is_the_ceiling_of_samples_at_a_time() -> None:
    """The semaphore comes from `Resource.concurrency`."""
    handler = parts.Handler(behave=lambda *_: asyncio.sleep(0))
    spec = parts.spec(handler, resource=Resource(concurrency=3))
    await parts.scheduler(spec).run_all([parts.task(n=10)])
    assert handler.most_running == 3


async def test_a_token_is_held_across_the_whole_episode() -> None:
    """While one sample is judged, no other runs in its place."""
    seen: list[str] = []

    async def judge(sample: RolloutSample) -> None:
        seen.append(f"judge {sample.episode.replica_index}")
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append(f"judged {sample.episode.replica_index}")

    async def run(sample: RolloutSample, _: object) -> None:
        seen.append(f"run {sample.episode.replica_index}")

    handler = parts.Handler(behave=run, judge=judge)
    spec = parts.spec(
        handler, run_resource=Resource(cpu=1), resource=Resource(concurrency=9, cpu=1)
    )
    pool = PlacementPool([NodeResource(node="a", cpu=1, memory_gb=1)])
    await parts.scheduler(spec, pool=pool).run_all([parts.task(n=2)])
    assert seen == ["run 0", "judge 0", "judged 0", "run 1", "judge 1", "judged 1"]
    assert handler.contexts["swe-0#0"].placement is not None


async def test_on_task_done_fires_for_each_task_as_it_ends() -> None:
    """Results stream to the collector and the progress bar."""
    gate = asyncio.Event()

    async def behave(sample: RolloutSample, _: object) -> None:
        if sample.episode.uid == "swe-0":
            await gate.wait()

    class Bar:
        """Lets the first task go on once another is done."""

        done = 0

        def update(self, n: int) -> None:
            """Count."""
            self.done += n
            gate.set()

    seen: list[int] = []
    bar = Bar()
    it = parts.scheduler(
        parts.spec(parts.Handler(behave=behave)),
        collector=lambda task: seen.append(task.index),
        progress=bar,
    )
    await it.run_all([parts.task(index=0), parts.task(index=1)])
    assert seen == [1, 0]
    assert bar.done == 2


async def test_token_data_is_copied_off_the_result_onto_the_sample() -> None:
    """Ids, log-probs, loss mask, and the reward of the judge."""
    (sample,) = await ended(parts.Handler(reward=lambda _: 1.0))
    assert sample.prompts.tolist() == [1, 2]
    assert sample.responses.tolist() == [3, 4, 5]
    assert sample.response_mask.tolist() == [1, 0, 1]
    assert sample.rollout_log_prob.tolist() == [-0.5, 0.0, -0.25]
    assert sample.weight_versions.tolist() == [7, -1, 7]
    assert sample.rewards == 1.0
    assert sample.termination is TerminationClass.RESOLVED
    assert not sample.remove_sample


async def test_an_interrupted_sample_goes_on_when_dispatch_does() -> None:
    """A weight sync costs a sample nothing; while paused it does not start again."""
    tries: list[int] = []

    async def behave(sample: RolloutSample, _: object) -> None:
        tries.append(sample.attempt)
        if len(tries) == 1:
            sample.attempt += 1
            it.pause_dispatch()
            paused.set()
            raise RolloutGenerationAborted("weights")

    paused = asyncio.Event()
    it = parts.scheduler(parts.spec(parts.Handler(behave=behave)))
    async with asyncio.TaskGroup() as group:
        group.create_task(it.run_all([parts.task()]))
        await paused.wait()
        for _ in range(5):
            await asyncio.sleep(0)
        assert tries == [0]
        it.resume_dispatch()
    assert tries == [0, 1]


# --- aborts -----------------------------------------------------------------------------------


async def test_a_sample_that_raises_is_aborted_and_no_other() -> None:
    """Reward 0.0, a two-token dummy without gradient, `remove_sample`."""
    first, second = await ended(raising(EngineDied("gone"), 1), n=2)
    assert first.termination is TerminationClass.RESOLVED
    assert second.termination is TerminationClass.INFRA_CONN
    assert second.rewards == 0.0
    assert len(second.prompts) + len(second.responses) == 2
    assert second.response_mask.tolist() == [0]
    assert second.remove_sample


async def test_the_agents_own_reason_is_kept_beside_the_classification() -> None:
    """`_termination_reason_agent` is for diagnostics."""
    (sample,) = await ended(raising(ConnectionResetError("peer")))
    assert sample.metadata["_termination_reason_agent"] == "thinking"
    assert sample.metadata["_termination_reason"] == "infra_conn"


async def test_an_abort_is_annotated() -> None:
    """Phase, window, node, turns, and the error's own words."""

    async def judge(_: RolloutSample) -> None:
        raise OSError("no space left on device")

    handler = parts.Handler(judge=judge, turns=3)
    spec = parts.spec(handler, run_resource=Resource(cpu=1), resource=Resource(cpu=1))
    pool = PlacementPool([NodeResource(node="10.0.0.9", cpu=1, memory_gb=1)])
    task = parts.task()
    await parts.scheduler(spec, pool=pool).run_all([task])
    (sample,) = task.samples
    note = sample.metadata["_abort"]
    assert (note["phase"], note["node_ip"], note["turns"]) == ("eval", "10.0.0.9", 3)
    assert (note["error"], note["message"]) == ("OSError", "no space left on device")
    assert note["window"][0] <= note["window"][1]
    assert sample.termination is TerminationClass.INFRA_SANDBOX
    assert sample.ending is not None
    assert sample.ending.phase == "eval"
    assert termination_summary(task.samples)["aborts"][0]["node_ip"] == "10.0.0.9"


async def test_a_time_out_is_the_policys_and_counts() -> None:
    """It scores 0 within its group, or policies learn to be slow; the infra's abort is left out."""
    group = await ended(raising(TimeoutError(), 1), n=3)
    assert group[1].termination is TerminationClass.AGENT_TIMEOUT
    assert not group[1].remove_sample
    assert group[1].response_mask.tolist() == [0]
    assert group_stats(group).mean == pytest.approx(2 / 3)
    group = await ended(raising(EnvDied("gone"), 1), n=3)
    stats = group_stats(group)
    assert (stats.counted, stats.mean, stats.deviation) == (2, 1.0, 0.0)


async def test_what_the_policy_broke_itself_is_no_infra_abort() -> None:
    """Its own container killed: wrong answer, and it counts."""
    (sample,) = await ended(raising(ContainerKilled("the container was killed")))
    assert sample.termination is TerminationClass.WRONG_ANSWER
    assert not sample.remove_sample


async def test_an_ending_by_the_infrastructure_that_a_handler_reports_is_masked() -> None:
    """Raised or returned: the same."""
    (sample,) = await ended(parts.Handler(cause=Cause.ENV_START_FAILED))
    assert sample.remove_sample
    assert sample.termination is TerminationClass.INFRA_SANDBOX


async def test_bad_input_is_no_abort() -> None:
    """A ConfigError ends the step, not the sample."""
    with pytest.raises(ConfigError, match=r"engine\.url"):
        await ended(raising(ConfigError("engine.url: wrong")))


async def test_a_handler_whose_own_part_was_cancelled_aborts_its_sample() -> None:
    """Nobody asked for it: the sample ends, and the step with it does not."""
    first, second = await ended(raising(asyncio.CancelledError(), 1), n=2)
    assert first.termination is TerminationClass.RESOLVED
    assert second.termination is TerminationClass.INFRA_OTHER
    assert second.remove_sample


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_ends_the_process_is_no_abort(error: type[BaseException]) -> None:
    """Ctrl-C in the middle of a handler ends the run."""
    with pytest.raises(error):
        asyncio.run(ended(raising(error())))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (TimeoutError("container connection"), "agent_timeout"),
        (TimeoutError(110, "Connection timed out"), "infra_conn"),
        (aiohttp.ServerTimeoutError(), "infra_conn"),
        (ConnectionRefusedError(), "infra_conn"),
        (EngineUnreachable("x"), "infra_conn"),
        (EngineDied("sandbox"), "infra_conn"),
        (EnvStartFailed("connection refused"), "infra_sandbox"),
        (EnvDied("timed out"), "infra_sandbox"),
        (EngineRejected("x"), "infra_other"),
        (ValueError("docker: container not found"), "infra_sandbox"),
        (ValueError("HTTP 503"), "infra_conn"),
        (ValueError("connection timed out"), "infra_conn"),
        (ValueError("agent timed out after 60 s"), "agent_timeout"),
        (ValueError("time-out"), "agent_timeout"),
        (ZeroDivisionError("division by zero"), "infra_other"),
        ("Connection reset by peer", "infra_conn"),
        ("deadline exceeded", "agent_timeout"),
        ("?", "infra_other"),
    ],
)
def test_classify_abort_believes_types_first_and_text_last(
    error: BaseException | str, kind: str
) -> None:
    """The four classes of aborts."""
    assert classify_abort(error) == kind


def test_classify_abort_follows_the_chain_of_causes() -> None:
    """A handler's wrapping hides nothing."""
    wrapped = RuntimeError("the docker agent failed")
    wrapped.__cause__ = EngineDied("gone")
    failed = HandlerFailed("RuntimeError")
    failed.__cause__ = wrapped
    assert classify_abort(failed) == "infra_conn"
    failed.__cause__ = ExceptionGroup("tasks", [ValueError("docker"), wrapped])
    assert classify_abort(failed) == "infra_conn"


@pytest.mark.parametrize(
    ("reward", "reason", "kind"),
    [
        (1.0, "submitted", "resolved"),
        (0.0, "submitted", "wrong_answer"),
        (0.0, "format_errors", "wrong_answer"),
        (0.0, "step_limit", "max_turns"),
        (0.0, "max_turns", "max_turns"),
        (0.0, "context_full", "context_overflow"),
        (0.0, "time_limit", "agent_timeout"),
        (0.0, "engine_died", "infra_conn"),
        (0.0, "infra_sandbox", "infra_sandbox"),
        (0.0, "handler_failed", "infra_other"),
        (1.0, "wrong_answer", "resolved"),
        (0.0, None, "infra_other"),
        (0.0, "who knows", "infra_other"),
    ],
)
def test_classify_termination_folds_reward_and_reason_into_eight_classes(
    reward: float, reason: str | None, kind: str
) -> None:
    """Causes and classes are both understood."""
    assert classify_termination(reward, reason) == kind


TYPED = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, EpisodeError) and hasattr(error, "cause")
]


@pytest.mark.parametrize("error", TYPED)
async def test_every_typed_error_keeps_its_blame(error: type[EpisodeError]) -> None:
    """Masked exactly where the infrastructure is to blame."""
    (sample,) = await ended(raising(error("x")))
    assert sample.remove_sample == (sample.ending.cause.blame is Blame.INFRASTRUCTURE)  # type: ignore[union-attr]
    assert sample.termination is not None
    assert sample.termination.startswith("infra_") == sample.remove_sample


async def test_no_response_still_has_a_shape() -> None:
    """An episode that ended before its first token counts, with the dummy's shape."""

    class Mute(parts.Handler):
        """Gives no response."""

        async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
            """Take the response away."""
            result = await super().run(sample, context)
            result.response_ids = np.empty(0, np.int32)
            return result

    (sample,) = await ended(Mute(cause=Cause.CONTEXT_FULL))
    assert len(sample.responses) == 1
    assert sample.response_mask.tolist() == [0]
    assert not sample.remove_sample
    assert sample.termination is TerminationClass.CONTEXT_OVERFLOW


def test_stopping_criteria_must_leave_something() -> None:
    """Zero turns are no limit but a mistake."""
    with pytest.raises(ConfigError, match="max_turns is 0"):
        StoppingCriteria(max_turns=0)
