"""Handlers over agentflow's flows: limits, sources, failures, interruptions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import scheduler_parts as parts
from plugins import AgentBuilder, Engine, EnvBuilder, RuntimeBuilder, access

from agentflow.errors import ConfigError, EngineDied, GenerationAborted
from agentflow.runner import AsyncioRunner
from agentflow.scheduling import Limits
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.flow import SWEAgentFlow
from agentflow.swe.scheduling_hooks import Scheduling
from agentflow.types import (
    Cause,
    FinishReason,
    GenerationResult,
    ModelInfo,
    SWERolloutResult,
    TerminationClass,
)
from executors.task_scheduler import (
    DAggerSWEAgent,
    IterationState,
    StoppingCriteria,
    Task,
    TaskConfig,
)
from executors.task_scheduler.dagger import dagger_engine
from executors.task_scheduler.gate import GatedEngine
from executors.task_scheduler.handlers import (
    ActionLevelFlowAgent,
    SWEFlowAgent,
    flow_agent,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, RolloutSample
    from executors.task_scheduler import BaseAgent

LIMITS = Limits(generations=4, live=4, admitted=4, starts=4, commands=4, rewards=4)


@dataclass
class Budgeted(Engine):
    """Remembers the budgets it was asked with, and keeps to them."""

    budgets: tuple[int, ...] = ()

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Talk until the budget ends."""
        self.budgets += (request.sampling.max_new_tokens,)
        size = min(request.sampling.max_new_tokens, 40)
        sink.append([ord("y")] * size, [-1.0] * size, 0)
        return GenerationResult(finish=FinishReason.LENGTH)


class Part:
    """One flow, its plug-ins, and what closes them."""

    def __init__(self, kind: str, engine: Engine, turns: int) -> None:
        self.env, self.runtime = EnvBuilder(), RuntimeBuilder()
        self.runner = AsyncioRunner()
        self.agent = AgentBuilder(turns=turns)
        self.gate = GatedEngine({"student": engine})
        self.handler = flow_agent(self.flow(kind), self.gate)

    def flow(self, kind: str) -> SWEAgentFlow:
        """Build either flow over the gate."""
        model = replace(access(Engine()), engine=self.gate)
        if kind == "whole":
            self.agent.whole = SWERolloutResult.SUBMIT
        if kind != "actions":
            return SWEAgentFlow(self.agent, self.env, self.runtime, model, runner=self.runner)
        return ActionLevelSWEAgentFlow(
            self.agent,
            self.env,
            self.runtime,
            model,
            scheduling=Scheduling(limits=LIMITS),
            runner=self.runner,
        )

    async def close(self) -> None:
        """Leave nothing behind."""
        await self.handler.close()
        self.runner.close()
        assert not self.env.live, "an environment was left"


async def run(
    handler: BaseAgent, *, n: int = 1, iteration: IterationState | None = None, **stopping: Any
) -> list[RolloutSample]:
    """Run one group."""
    task = Task(config=TaskConfig(task_type="swe"), index=0, samples=[])
    for index in range(n):
        sample = parts.sample("u", index)
        sample.task = {"instance_id": "u", "problem_statement": "fix it"}
        task.samples.append(sample)
    spec = parts.spec(handler, default_stopping=StoppingCriteria(**stopping))  # type: ignore[arg-type]
    await parts.scheduler(spec).run_all([task], iteration=iteration or IterationState())
    return task.samples


@pytest.fixture(params=["steps", "actions"])
def kind(request: pytest.FixtureRequest) -> str:
    """Run with either flow."""
    return str(request.param)


@pytest.fixture
async def made() -> AsyncIterator[Any]:
    """Make parts, and close them afterwards."""
    opened: list[Part] = []

    def make(kind: str, engine: Engine | None = None, *, turns: int = 2) -> Part:
        opened.append(Part(kind, engine or Engine(), turns))
        return opened[-1]

    yield make
    for part in opened:
        await part.close()


async def test_a_flow_of_either_kind_is_a_handler(made: Any, kind: str) -> None:
    """Run, judged, tokens copied, sources kept."""
    part = made(kind)
    expected = ActionLevelFlowAgent if kind == "actions" else SWEFlowAgent
    assert type(part.handler) is expected
    for sample in await run(part.handler, n=3):
        assert sample.termination is TerminationClass.RESOLVED
        assert sample.rewards == 1.0
        assert sample.response_mask.sum() == 6
        assert len(sample.responses) == len(sample.rollout_log_prob) == len(sample.response_mask)
        assert sample.metadata["_turn_sources"] == ["student", "student"]
        assert sample.facts.patch == "a patch"


async def test_max_turns_ends_an_episode_as_the_policys(made: Any, kind: str) -> None:
    """Exactly that many turns, reward 0, and it counts."""
    (sample,) = await run(made(kind, turns=9).handler, max_turns=3)
    assert sample.termination is TerminationClass.MAX_TURNS
    assert sample.facts.turns == 3
    assert sample.result is SWERolloutResult.EXCEED
    assert sample.rewards == 0.0
    assert not sample.remove_sample


async def test_max_turns_holds_an_agent_that_runs_by_itself(made: Any) -> None:
    """The limit stands before the engine, so no agent goes around it."""
    (sample,) = await run(made("whole").handler, max_turns=1)
    assert sample.termination is TerminationClass.RESOLVED


async def test_max_context_len_cuts_the_last_turn_and_ends_the_episode(
    made: Any, kind: str
) -> None:
    """Budgets shrink to what is left; without room the episode has overflowed."""
    engine = Budgeted()
    (sample,) = await run(made(kind, engine, turns=9).handler, max_context_len=60)
    assert sample.termination is TerminationClass.CONTEXT_OVERFLOW
    assert len(sample.prompts) + int(sample.response_mask.sum()) <= 60
    assert engine.budgets[0] == 60 - len(sample.prompts)


async def test_a_time_limit_keeps_what_was_generated(made: Any, kind: str) -> None:
    """The policy's tokens stay, it scores 0, and its environment goes."""
    part = made(kind)
    part.env.hang_commands = True
    (sample,) = await run(part.handler, timeout_s=0.05)
    assert sample.ending is not None
    assert sample.ending.cause is Cause.TIME_LIMIT
    assert sample.termination is TerminationClass.AGENT_TIMEOUT
    assert sample.response_mask.sum() > 0
    assert not sample.remove_sample
    assert not part.env.live


async def test_an_engine_that_dies_masks_its_sample_alone(made: Any, kind: str) -> None:
    """The group's other samples are judged."""
    engine = Engine(failures=[EngineDied("gone")])
    samples = await run(made(kind, engine).handler, n=2)
    assert sorted(str(sample.termination) for sample in samples) == ["infra_conn", "resolved"]
    assert [s.remove_sample for s in samples] == [s.rewards == 0.0 for s in samples]


async def test_a_task_that_cannot_be_built_is_masked(made: Any, kind: str) -> None:
    """Preprocessing failed: nobody's policy."""
    part = made(kind)
    part.runtime.failures["build"] = ValueError("no such repository")
    (sample,) = await run(part.handler)
    assert sample.termination is TerminationClass.INFRA_OTHER
    assert sample.remove_sample


async def test_an_interrupted_episode_goes_on_from_its_partial_turn(made: Any) -> None:
    """Its one token is kept, and counted once; the turn's source is told once."""
    engine = Engine(failures=[GenerationAborted("weights")])
    (sample,) = await run(made("steps", engine).handler)
    assert sample.termination is TerminationClass.RESOLVED
    assert sample.responses.tolist()[0] == ord("x")
    assert sample.attempt == 1
    assert sample.metadata["_turn_sources"] == ["student", "student"]


# --- DAgger -----------------------------------------------------------------------------------


class Pair:
    """A student that says `s`, a teacher that says `t`."""

    def __init__(self, *, seed: int = 0, turns: int = 6) -> None:
        self.student, self.teacher = Engine(answer="s"), Engine(answer="t")
        self.gate = dagger_engine(self.student, self.teacher)
        self.runner = AsyncioRunner(seed=seed)
        model = replace(access(Engine()), engine=self.gate)
        flow = SWEAgentFlow(
            AgentBuilder(turns=turns), EnvBuilder(), RuntimeBuilder(), model, runner=self.runner
        )
        self.handler = DAggerSWEAgent(flow, self.gate, runner=self.runner)

    async def sources(self, beta: float, *, rollout_id: int = 0, n: int = 1) -> list[list[str]]:
        """Run a group and tell who answered."""
        state = IterationState(rollout_id=rollout_id, beta=beta)
        samples = await run(self.handler, n=n, iteration=state)
        for sample in samples:  # what was said agrees with what was noted
            said = [chr(i) for i in sample.responses[sample.response_mask == 1] if i > 1]
            noted = [source[0] for source in sample.metadata["_turn_sources"]]
            assert said == noted
        return [sample.metadata["_turn_sources"] for sample in samples]

    async def close(self) -> None:
        """End its threads."""
        await self.handler.close()
        self.runner.close()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    """Make a pair."""
    made = Pair()
    yield made
    await made.close()


async def test_beta_is_the_share_of_turns_that_the_teacher_answers(pair: Pair) -> None:
    """None at 0, all at 1, about that many in between."""
    assert await pair.sources(0.0) == [["student"] * 6]
    assert await pair.sources(1.0) == [["teacher"] * 6]
    drawn = [source for sample in await pair.sources(0.3, n=60) for source in sample]
    assert 0.2 < drawn.count("teacher") / len(drawn) < 0.4


async def test_who_answers_is_drawn_from_seed_rollout_episode_and_turn(pair: Pair) -> None:
    """A second run draws the same; another rollout, replica or seed does not."""
    first = await pair.sources(0.5, n=4)
    assert await pair.sources(0.5, n=4) == first
    assert await pair.sources(0.5, n=4, rollout_id=1) != first
    assert len(set(map(tuple, first))) > 1
    other = Pair(seed=1)
    assert await other.sources(0.5, n=4) != first
    await other.close()


async def test_an_aborted_turn_keeps_its_engine(pair: Pair) -> None:
    """The draw is the turn's, not the request's."""
    pair.teacher.failures = [GenerationAborted("weights")]
    state = IterationState(beta=1.0)
    (sample,) = await run(pair.handler, iteration=state)
    assert sample.metadata["_turn_sources"] == ["teacher"] * 6
    assert pair.student.rids == []
    assert len(pair.teacher.rids) == 7


async def test_a_teacher_that_dies_in_mid_episode_masks_its_sample_alone() -> None:
    """After turns of the student; the other samples of the group are judged."""
    made = Pair()
    made.teacher.failures = [EngineDied("gone")]
    samples = await run(made.handler, n=4, iteration=IterationState(beta=0.3))
    await made.close()
    (lost,) = [sample for sample in samples if sample.remove_sample]
    assert lost.termination is TerminationClass.INFRA_CONN
    assert lost.metadata["_turn_sources"][-1] == "teacher"
    assert {s.termination for s in samples if s is not lost} == {TerminationClass.RESOLVED}


async def test_engines_of_different_vocabularies_are_refused() -> None:
    """One id would mean two things."""

    @dataclass
    class Other(Engine):
        async def info(self) -> ModelInfo:
            """Know fewer ids."""
            return replace(await super().info(), vocab_size=7)

    with pytest.raises(ConfigError, match="need one vocabulary"):
        await dagger_engine(Engine(), Other()).info()


async def test_an_abort_reaches_the_engine_that_has_the_request() -> None:
    """And no other; a late one is harmless."""

    @dataclass
    class Hanging(Engine):
        async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
            """Wait for the abort."""
            began.set()
            await ended.wait()
            raise GenerationAborted("asked")

        async def abort(self, rid: str) -> None:
            """End it."""
            self.rids.append(rid)
            ended.set()

    began, ended = asyncio.Event(), asyncio.Event()
    student, teacher = Hanging(), Engine()
    gate = dagger_engine(student, teacher)
    model = access(Engine())
    flow_model = replace(model, engine=gate)
    flow = SWEAgentFlow(AgentBuilder(), EnvBuilder(), RuntimeBuilder(), flow_model)
    swe = await flow.preprocess(_issued())
    with pytest.raises(ExceptionGroup) as caught:  # noqa: PT012  # the abort is the point
        async with asyncio.TaskGroup() as group:
            assert swe.model is not None
            group.create_task(swe.model.generate([{"role": "user", "content": "x"}]))
            await began.wait()
            await swe.model.abort()
    assert caught.group_contains(GenerationAborted)
    assert len(student.rids) == 1
    await gate.abort(student.rids[0])
    assert len(student.rids) == 1


def _issued() -> RolloutSample:
    sample = parts.sample("u")
    sample.task = {"instance_id": "u", "problem_statement": "fix it"}
    return sample
