"""Handlers over agentflow's own flows: one drives the steps itself, one submits to a scheduler."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from agentflow.naive_flow import NaiveFlow
from agentflow.swe.sample import SWESample
from agentflow.types import Cause, Ending, StepStatus, SWERolloutResult
from executors.task_scheduler.agents import AgentResult
from executors.task_scheduler.gate import Gate

if TYPE_CHECKING:
    from agentflow.protocols import AgentFlow
    from agentflow.types import PartialRolloutState, RolloutSample
    from executors.task_scheduler.agents import RunContext
    from executors.task_scheduler.gate import GatedEngine

STUDENT: Final = "student"
TURN_SOURCES: Final = "_turn_sources"
"""Key of a sample's metadata: which engine answered each turn."""


class Closing(Protocol):
    """What outlives episodes."""

    async def close(self) -> None:
        """Release it. Idempotent."""
        ...


@runtime_checkable
class SubmittingFlow(Protocol):
    """A flow that schedules an episode's actions itself (`ActionLevelSWEAgentFlow`)."""

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Make the flow's own sample."""
        ...

    async def submit_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Run it to its end, judged, and fill `dc_sample` in."""
        ...

    async def project_to_dc_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Copy tokens, reward and facts."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes."""
        ...


class _FlowAgent:
    """What both handlers share: the gate, the result, the end."""

    def __init__(self, flow: Closing, engine: GatedEngine) -> None:
        self._closing = flow
        self.engine = engine

    def _choose(self, sample: RolloutSample, context: RunContext, turn: int) -> str:  # noqa: ARG002  # for subclasses
        return STUDENT

    def _gate(self, swe: SWESample, sample: RolloutSample, context: RunContext) -> Gate:
        loop = asyncio.get_running_loop()
        sources: list[str] = sample.metadata.setdefault(TURN_SOURCES, [])

        def on_turn(turn: int, source: str) -> None:
            sources[turn:] = [source]  # a clean restart counts its turns from 0 again
            loop.call_soon_threadsafe(context.on_turn, turn, source)

        return Gate(
            sample=swe,
            stopping=context.stopping,
            choose=lambda turn: self._choose(sample, context, turn),
            on_turn=on_turn,
        )

    async def close(self) -> None:
        """Close the flow, then the engines."""
        await self._closing.close()
        await self.engine.close()


class SWEFlowAgent(_FlowAgent):
    """`BaseAgent` over `SWEAgentFlow`, or any other `AgentFlow`: runs, then judges."""

    def __init__(self, flow: AgentFlow, engine: GatedEngine) -> None:
        """`flow` generates with `engine`, which holds its episodes to their criteria."""
        super().__init__(flow, engine)
        self.flow = flow
        self._naive = NaiveFlow(flow)

    async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
        """Drive the episode to its end, at the latest to its time limit."""
        swe = await self.flow.preprocess(sample)
        state: PartialRolloutState | None = None
        deadline = asyncio.timeout(context.stopping.timeout_s)
        with self.engine.open(self._gate(swe, sample, context)):
            try:
                async with deadline:
                    state = await self._naive.run(swe, sample)
            except TimeoutError:
                if not deadline.expired():
                    raise
                _time_is_up(swe)
        judge = state is not None and state.status is not StepStatus.ABORTED
        return await _result(self.flow, swe, sample, state=swe if judge else None)

    async def eval(
        self,
        sample: RolloutSample,
        result: AgentResult,
        context: RunContext,  # noqa: ARG002  # the protocol's
    ) -> AgentResult:
        """Judge what was submitted."""
        swe = result.state
        if not isinstance(swe, SWESample):
            return result
        await self.flow.reward(swe)
        return await _result(self.flow, swe, sample, state=None)


class ActionLevelFlowAgent(_FlowAgent):
    """`BaseAgent` over `ActionLevelSWEAgentFlow`, which runs and judges in its own order."""

    def __init__(self, flow: SubmittingFlow, engine: GatedEngine) -> None:
        """`flow` generates with `engine`, which holds its episodes to their criteria."""
        super().__init__(flow, engine)
        self.flow = flow

    async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
        """Submit the episode and wait for its end, judging included."""
        swe = await self.flow.preprocess(sample)
        deadline = asyncio.timeout(context.stopping.timeout_s)
        with self.engine.open(self._gate(swe, sample, context)):
            try:
                async with deadline:
                    await self.flow.submit_sample(swe, sample)
            except TimeoutError:
                if not deadline.expired():
                    raise
                _time_is_up(swe)
                await self.flow.project_to_dc_sample(swe, sample)
        return _result_of(sample, state=None)

    async def eval(
        self,
        sample: RolloutSample,  # noqa: ARG002  # the protocol's
        result: AgentResult,
        context: RunContext,  # noqa: ARG002  # the protocol's
    ) -> AgentResult:
        """Nothing is left to do: the flow judged the episode where its turn was."""
        return result


def flow_agent(flow: AgentFlow, engine: GatedEngine) -> SWEFlowAgent | ActionLevelFlowAgent:
    """Make the handler that fits the flow."""
    candidate: object = flow
    if isinstance(candidate, SubmittingFlow):
        return ActionLevelFlowAgent(candidate, engine)
    return SWEFlowAgent(flow, engine)


def _time_is_up(swe: SWESample) -> None:
    rollout = swe.m.rollout
    rollout.ending = Ending(cause=Cause.TIME_LIMIT, phase="run", message="the time limit is over")
    rollout.result = SWERolloutResult.EXCEED
    swe.reward = 0.0


async def _result(
    flow: AgentFlow, swe: SWESample, sample: RolloutSample, *, state: Any
) -> AgentResult:
    await flow.project_to_dc_sample(swe, sample)
    return _result_of(sample, state=state)


def _result_of(sample: RolloutSample, *, state: Any) -> AgentResult:
    """Read a result off a sample that a flow has filled in."""
    assert sample.ending is not None, f"{sample.episode} ended without saying why"
    return AgentResult(
        ending=sample.ending,
        prompt_ids=sample.prompts,
        response_ids=sample.responses,
        loss_mask=sample.response_mask,
        log_probs=sample.rollout_log_prob,
        weight_versions=sample.weight_versions,
        reward=sample.rewards,
        result=sample.result,
        facts=sample.facts,
        state=state,
    )
