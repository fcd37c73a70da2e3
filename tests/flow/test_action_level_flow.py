"""Episodes through ActionLevelSWEAgentFlow: every ending, preemption, weight sync, cancellation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from plugins import (
    END,
    AgentBuilder,
    Engine,
    EnvBuilder,
    RuntimeBuilder,
    access,
    new_sample,
)

from agentflow.errors import (
    EngineDied,
    EngineUnreachable,
    GenerationAborted,
    RolloutGenerationAborted,
)
from agentflow.observe.events import ListEvents
from agentflow.scheduling import Limits
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.scheduling_hooks import Scheduling
from agentflow.types import (
    Cause,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    RolloutSample,
    SyncMode,
)
from priority.policies import Fcfs, FcfsPreempt, Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence
    from typing import Any

    from agentflow.protocols import TokenSink
    from priority.policies import Policy, Standing


class InlineRunner:
    """Everything on the test's own loop."""

    def now(self) -> float:
        """Seconds of the loop."""
        return asyncio.get_running_loop().time()

    def wall_time(self) -> float:
        """A fixed time."""
        return 0.0

    def random(self, name: str) -> Any:
        """Nothing here draws numbers."""
        raise AssertionError(name)

    async def to_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run it here."""
        return fn(*args, **kwargs)

    async def on_flow_worker(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run it here."""
        return await coro


@dataclass
class SteppedEngine(Engine):
    """Every generation waits to be let go, token by token, or to be aborted."""

    waiting: dict[str, asyncio.Future[bool]] = field(default_factory=dict)
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    aborted: list[str] = field(default_factory=list)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Give one token at once, and the rest when released."""
        self.rids.append(request.rid)
        sink.append([ord("x")], [-1.0], 0)
        self.waiting[request.rid] = asyncio.get_running_loop().create_future()
        self.arrived.set()
        try:
            finished = await self.waiting[request.rid]
        finally:
            del self.waiting[request.rid]
        if not finished:
            raise GenerationAborted(request.rid)
        sink.append([END], [-0.5], 0)
        return GenerationResult(finish=FinishReason.STOP)

    async def abort(self, rid: str) -> None:
        """Abort one."""
        self.aborted.append(rid)
        if rid in self.waiting:
            self.waiting[rid].set_result(False)

    async def until(self, n: int) -> list[str]:
        """Wait until `n` generations are in flight; their rids, in order of arrival."""
        while len(self.waiting) != n:
            self.arrived.clear()
            await self.arrived.wait()
        return list(self.waiting)


class Stage:
    """A flow with its parts, and samples submitted to it."""

    def __init__(self) -> None:
        self.engine: Engine = Engine()
        self.envs = EnvBuilder()
        self.agents = AgentBuilder()
        self.runtimes = RuntimeBuilder()
        self.policy: Policy = Fcfs()
        self.events = ListEvents()
        self.limits = {
            "generations": 2,
            "live": 4,
            "admitted": 6,
            "starts": 2,
            "commands": 2,
            "rewards": 1,
        }

    def flow(self) -> ActionLevelSWEAgentFlow:
        """Wire them."""
        return ActionLevelSWEAgentFlow(
            self.agents,
            self.envs,
            self.runtimes,
            access(self.engine),
            scheduling=Scheduling(limits=Limits(**self.limits), policy=self.policy),
            runner=InlineRunner(),
            events=self.events,
        )


@pytest.fixture
def stage() -> Stage:
    """Give parts that work."""
    return Stage()


async def run(flow: ActionLevelSWEAgentFlow, sample: RolloutSample) -> RolloutSample:
    """Preprocess and submit one sample."""
    await flow.submit_sample(await flow.preprocess(sample), sample)
    return sample


async def test_many_episodes_end_judged_within_the_limits(stage: Stage) -> None:
    """More episodes than any limit all end, resolved, and leave nothing behind."""
    flow = stage.flow()
    async with asyncio.TaskGroup() as tasks:
        runs = [tasks.create_task(run(flow, new_sample(f"s{i}"))) for i in range(20)]
    assert [r.result().rewards for r in runs] == [1.0] * 20
    assert all(r.result().facts.turns == 2 for r in runs)
    assert not stage.envs.live
    await flow.close()


async def test_same_sample_as_trajectory_by_trajectory(stage: Stage) -> None:
    """With an undisturbed engine both ways of scheduling give the same tokens."""
    from agentflow.naive_flow import NaiveFlow  # noqa: PLC0415
    from agentflow.swe.flow import SWEAgentFlow  # noqa: PLC0415

    flow = stage.flow()
    one = await run(flow, new_sample())
    naive = SWEAgentFlow(
        stage.agents, stage.envs, stage.runtimes, access(stage.engine), runner=InlineRunner()
    )
    other = await NaiveFlow(naive)(new_sample())
    for name in ("prompts", "responses", "response_mask", "rollout_log_prob", "weight_versions"):
        assert getattr(one, name).tolist() == getattr(other, name).tolist()
    assert one.rewards == other.rewards
    await flow.close()


@pytest.mark.parametrize("phase", ["bootstrap", "diff", "eval"])
async def test_a_failing_runtime_ends_one_episode_with_its_cause(stage: Stage, phase: str) -> None:
    """Whatever phase fails, the cause reaches the sample and no environment stays."""
    stage.runtimes.failures[phase] = RuntimeError("broken")
    flow = stage.flow()
    sample = await run(flow, new_sample())
    assert sample.ending is not None
    assert sample.ending.cause is Cause(f"{phase}_failed")
    assert sample.remove_sample
    assert not stage.envs.live
    await flow.close()


async def test_a_dead_engine_ends_one_episode_with_its_cause(stage: Stage) -> None:
    """One generation that dies costs one episode, and its slot is free again."""
    stage.engine.failures = [EngineDied("gone")]
    stage.limits["generations"] = 1
    flow = stage.flow()
    first = await run(flow, new_sample("a"))
    assert first.ending is not None
    assert first.ending.cause is Cause.ENGINE_DIED
    assert first.facts.generated_tokens == 1
    assert (await run(flow, new_sample("b"))).rewards == 1.0
    assert not stage.envs.live
    await flow.close()


async def test_the_engine_hears_the_class_of_every_generation(stage: Stage) -> None:
    """1 for high, 0 for low: an engine that orders its own queue serves the high ones first."""
    stage.policy = FcfsPreempt(window=1, preempts=False)
    flow = stage.flow()
    await run(flow, new_sample("first"))
    await run(flow, new_sample("second"))
    assert stage.engine.priorities == [1, 1, 0, 0]
    await flow.close()


async def test_a_preempted_generation_goes_on_from_its_tokens(stage: Stage) -> None:
    """The newest low generation yields its slot to a high one, then continues; nothing is lost."""
    engine = stage.engine = SteppedEngine()
    stage.policy = FcfsPreempt(window=1)
    stage.limits["generations"] = 1
    flow = stage.flow()
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        high = tasks.create_task(run(flow, new_sample("high")))
        (rid,) = await engine.until(1)
        low = tasks.create_task(run(flow, new_sample("low")))
        for _ in range(20):  # until it waits for the slot
            await asyncio.sleep(0)
        engine.waiting[rid].set_result(True)
        while len(engine.rids) < 3:  # low starts, is preempted, high starts its second turn
            engine.arrived.clear()
            await engine.arrived.wait()
        assert engine.aborted == [engine.rids[1]]
        while not (high.done() and low.done()):
            for future in list(engine.waiting.values()):
                if not future.done():
                    future.set_result(True)
            await asyncio.sleep(0)
    assert low.result().rewards == high.result().rewards == 1.0
    assert bytes(low.result().responses.tolist())[:3] == b"xx\x01"
    assert stage.events.kinds().count("preempted") == 1
    assert len(set(engine.rids)) == len(engine.rids)
    await flow.close()


async def test_a_sync_in_abort_mode_saves_every_generation(stage: Stage) -> None:
    """Both generations end saved; resumed, they continue in their own environments."""
    engine = stage.engine = SteppedEngine()
    flow = stage.flow()
    samples = [new_sample("a"), new_sample("b")]
    async with asyncio.timeout(5):
        runs = [asyncio.ensure_future(run(flow, s)) for s in samples]
        await engine.until(2)
        await flow.pause_generations(SyncMode.ABORT)
        results = await asyncio.gather(*runs, return_exceptions=True)
        assert [type(r) for r in results] == [RolloutGenerationAborted] * 2
        assert len(stage.envs.live) == 2
        again = [asyncio.ensure_future(run(flow, s)) for s in samples]
        for _ in range(20):
            await asyncio.sleep(0)
        assert not engine.waiting
        await flow.resume_generations()
        while not all(r.done() for r in again):
            for future in list(engine.waiting.values()):
                if not future.done():
                    future.set_result(True)
            await asyncio.sleep(0)
    assert [s.rewards for s in samples] == [1.0, 1.0]
    assert all(bytes(s.responses.tolist()).startswith(b"xx\x01") for s in samples)
    assert [s.attempt for s in samples] == [1, 1]
    assert stage.envs.started == 4
    assert not stage.envs.live
    await flow.close()


class HesitantEngine(SteppedEngine):
    """Ends an aborted generation when it is let go, not at once."""

    async def abort(self, rid: str) -> None:
        """Take note."""
        self.aborted.append(rid)


async def test_a_pause_in_abort_mode_waits_for_the_end_of_every_generation(stage: Stage) -> None:
    """An abort that was asked for is none: weights are replaced when nothing is generated."""
    engine = stage.engine = HesitantEngine()
    flow = stage.flow()
    async with asyncio.timeout(5):
        runs = [asyncio.ensure_future(run(flow, new_sample(name))) for name in "ab"]
        first, second = await engine.until(2)
        pausing = asyncio.ensure_future(flow.pause_generations(SyncMode.ABORT))
        for rid in (first, second):
            for _ in range(20):
                await asyncio.sleep(0)
            assert sorted(engine.aborted) == sorted([first, second])
            assert not pausing.done()
            engine.waiting[rid].set_result(False)
        await pausing
        results = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(r) for r in results] == [RolloutGenerationAborted] * 2
    await flow.close()


async def test_a_generation_that_a_sync_overtakes_is_never_sent(stage: Stage) -> None:
    """Its turn had come and its request was not made: nobody could have aborted it later."""
    engine = stage.engine = SteppedEngine()
    flow = stage.flow()
    sample = new_sample()
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(run(flow, sample))
        while not flow.gauges()["generating"]:  # noqa: ASYNC110  # it tells nobody
            await asyncio.sleep(0)
        assert engine.rids == []
        await flow.pause_generations(SyncMode.ABORT)
        with pytest.raises(RolloutGenerationAborted):
            await task
    assert engine.rids == []
    assert sample.attempt == 1
    await flow.close()
    assert not stage.envs.live


class SilentEngine(SteppedEngine):
    """Gives no token before it is let go."""

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Give everything at the end."""
        return await super().generate(request, _Late(sink))


class _Late:
    def __init__(self, sink: TokenSink) -> None:
        self.sink = sink

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Leave out all but the last token."""
        if END in ids:
            self.sink.append(ids, logprobs, version)


async def test_an_abort_before_the_first_token_queues_again(stage: Stage) -> None:
    """For a sync as for a preemption: nothing was received, nothing is lost, the rid is new."""
    engine = stage.engine = SilentEngine()
    stage.agents.turns = 1
    flow = stage.flow()
    sample = new_sample()
    async with asyncio.timeout(5):
        first = asyncio.ensure_future(run(flow, sample))
        await engine.until(1)
        await flow.pause_generations(SyncMode.ABORT)
        with pytest.raises(RolloutGenerationAborted):
            await first
        assert sample.partial_agent_data.record.generated == 0
        await flow.resume_generations()
        again = asyncio.ensure_future(run(flow, sample))
        (rid,) = await engine.until(1)
        engine.waiting[rid].set_result(True)
        await again
    assert (sample.rewards, sample.facts.generated_tokens, sample.facts.turns) == (1.0, 1, 1)
    assert stage.envs.started == 2  # one to work in, one to judge in
    assert len(set(engine.rids)) == 2
    await flow.close()


class Unhurried(SteppedEngine):
    """Hears an abort, and ends the generation only when it is told to."""

    async def abort(self, rid: str) -> None:
        """Take note."""
        self.aborted.append(rid)
        self.arrived.set()


async def preempting(stage: Stage) -> tuple[Unhurried, ActionLevelSWEAgentFlow, list[Any]]:
    """Let a generation of `low` be on its way out for `high`; the engine has not ended it yet."""
    engine = stage.engine = Unhurried()
    stage.policy = FcfsPreempt(window=1)
    stage.limits["generations"] = 1
    flow = stage.flow()
    samples = [new_sample("high"), new_sample("low")]
    runs = [asyncio.ensure_future(run(flow, sample)) for sample in samples]
    (rid,) = await engine.until(1)
    for _ in range(20):  # until `low` waits for the slot
        await asyncio.sleep(0)
    engine.waiting[rid].set_result(True)
    while not engine.aborted:
        engine.arrived.clear()
        await engine.arrived.wait()
    assert engine.aborted == [engine.rids[1]]
    return engine, flow, [*zip(samples, runs, strict=True)]


async def test_a_sync_over_a_preemption_under_way_saves_the_episode(stage: Stage) -> None:
    """One abort for two reasons: it counts as the sync's, with a new attempt."""
    async with asyncio.timeout(5):
        engine, flow, ((_, high), (low_sample, low)) = await preempting(stage)
        pause = asyncio.ensure_future(flow.pause_generations(SyncMode.ABORT))
        await asyncio.sleep(0)
        engine.waiting[engine.rids[1]].set_result(False)
        await pause
        with pytest.raises(RolloutGenerationAborted):
            await low
        assert (low_sample.attempt, engine.aborted) == (1, [engine.rids[1]])
        assert "preempted" not in stage.events.kinds()
        assert not high.done()
        await flow.resume_generations()
        (rid,) = await engine.until(1)  # the slot is the one's that it was freed for
        engine.waiting[rid].set_result(True)
        await high
    await flow.close()


async def test_a_preemption_that_comes_too_late_hits_no_later_turn(stage: Stage) -> None:
    """The generation ended by itself before its abort: that counts, and the next turn goes on."""
    async with asyncio.timeout(5):
        engine, flow, ((_, high), (low_sample, low)) = await preempting(stage)
        engine.waiting[engine.rids[1]].set_result(True)
        while not (high.done() and low.done()):
            for future in list(engine.waiting.values()):
                if not future.done():
                    future.set_result(True)
            await asyncio.sleep(0)
    assert engine.aborted == [engine.rids[1]]
    assert "preempted" not in stage.events.kinds()
    assert (low_sample.rewards, low_sample.facts.turns, low_sample.attempt) == (1.0, 2, 0)
    await flow.close()


async def test_a_sync_in_drain_mode_waits_for_generations(stage: Stage) -> None:
    """Nothing is aborted; the pause returns when what was in flight has ended."""
    engine = stage.engine = SteppedEngine()
    stage.agents.turns = 1
    flow = stage.flow()
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(run(flow, new_sample()))
        (rid,) = await engine.until(1)
        pause = asyncio.ensure_future(flow.pause_generations(SyncMode.DRAIN))
        await asyncio.sleep(0)
        assert not pause.done()
        engine.waiting[rid].set_result(True)
        await pause
        assert (await task).rewards == 1.0
    assert engine.aborted == []
    await flow.close()


async def test_an_abort_nobody_asked_for_counts_as_a_weight_sync(stage: Stage) -> None:
    """If the engine itself was paused by somebody, the episode is saved, not lost."""
    stage.engine.failures = [GenerationAborted("abort_all")]
    flow = stage.flow()
    sample = new_sample()
    with pytest.raises(RolloutGenerationAborted):
        await run(flow, sample)
    assert (await run(flow, sample)).rewards == 1.0
    await flow.close()


async def test_cancelling_the_wait_ends_the_episode(stage: Stage) -> None:
    """A caller that goes away takes its environment with it; other episodes go on."""
    stage.envs.hang_commands = True
    flow = stage.flow()
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(run(flow, new_sample()))
        await stage.envs.hanging.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not stage.envs.live
    stage.envs.hang_commands = False
    assert (await run(flow, new_sample("b"))).rewards == 1.0
    await flow.close()


async def test_a_bug_reaches_the_caller_and_nobody_else(stage: Stage) -> None:
    """An unexpected exception is raised where the episode was submitted."""
    stage.engine.failures = [ZeroDivisionError("a bug")]
    flow = stage.flow()
    with pytest.raises(ZeroDivisionError):
        await run(flow, new_sample("a"))
    assert (await run(flow, new_sample("b"))).rewards == 1.0
    assert not stage.envs.live
    await flow.close()


async def test_close_ends_what_is_under_way(stage: Stage) -> None:
    """Closing cancels waiting callers and removes every environment."""
    stage.envs.hang_commands = True
    flow = stage.flow()
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(run(flow, new_sample()))
        await stage.envs.hanging.wait()
        await flow.close()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert not stage.envs.live


class BrokenPolicy:
    """A policy of a user's own, with a bug that shows once environments are up."""

    preempts = False
    calls = 0

    def classify(self, standing: Standing) -> Priority:
        """Rank the first items, then break."""
        self.calls += 1
        if self.calls > 2:
            raise ZeroDivisionError("a bug")
        return Priority()


async def test_a_bug_in_scheduling_reaches_everybody_who_waits(stage: Stage) -> None:
    """No caller waits for ever because a policy raised inside the scheduler."""
    stage.policy = BrokenPolicy()
    flow = stage.flow()
    async with asyncio.timeout(5):
        runs = [run(flow, new_sample("a")), run(flow, new_sample("b"))]
        results = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(r) for r in results] == [ZeroDivisionError] * 2
    assert not stage.envs.live
    await flow.close()


async def test_an_abort_that_cannot_be_sent_costs_no_episode(stage: Stage) -> None:
    """The engine refuses the abort; the generation ends by itself, and so does the pause."""

    class Deaf(SteppedEngine):
        async def abort(self, rid: str) -> None:
            self.aborted.append(rid)
            raise EngineUnreachable("no route")

    engine = stage.engine = Deaf()
    stage.agents.turns = 1
    flow = stage.flow()
    async with asyncio.timeout(5):
        task = asyncio.ensure_future(run(flow, new_sample()))
        (rid,) = await engine.until(1)
        pause = asyncio.ensure_future(flow.pause_generations(SyncMode.ABORT))
        for _ in range(10):
            await asyncio.sleep(0)
        assert engine.aborted == [rid]
        engine.waiting[rid].set_result(True)
        await pause
        assert (await task).rewards == 1.0
    await flow.close()


async def test_a_closed_flow_takes_no_more_episodes(stage: Stage) -> None:
    """Submitting after close() is an error, not a task that nobody ends."""
    flow = stage.flow()
    await flow.close()
    with pytest.raises(RuntimeError, match="closed"):
        await run(flow, new_sample())
