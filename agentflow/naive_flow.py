"""NaiveFlow: one episode driven to its end, one step after the other.

The plain state machine: each step's status picks the next one, and only TERMINATED or ABORTED end
the loop. It schedules nothing; the action-level flow drives the same steps from queues.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, assert_never

from agentflow.aio import shielded
from agentflow.errors import EpisodeError, RolloutGenerationAborted
from agentflow.outcomes import make_fallback, save_partial, write_off
from agentflow.swe.sample import SWESample
from agentflow.types import Cause, PartialRolloutState, RolloutSample, StepStatus

if TYPE_CHECKING:
    from agentflow.protocols import AgentFlow, Runner
    from agentflow.types import Ending


class NaiveFlow:
    """Runs trajectories through the steps of an `AgentFlow`."""

    def __init__(
        self, flow: AgentFlow, *, runner: Runner | None = None, partial_rollout: bool = True
    ) -> None:
        """With `runner` episodes run on its flow worker, otherwise on the caller's loop.

        Without `partial_rollout` an interrupted episode starts anew instead of going on.
        """
        self._flow = flow
        self._runner = runner
        self._partial_rollout = partial_rollout

    async def __call__(self, dc_sample: RolloutSample) -> RolloutSample:
        """Roll out one sample and fill it in; a failed episode comes back with its `ending`.

        Raises RolloutGenerationAborted, with `partial_agent_data` set, when the episode was
        interrupted and can go on.
        """
        rollout = self._roll_out(dc_sample)
        if self._runner is None:
            return await rollout
        return await self._runner.on_flow_worker(rollout)

    async def give_up(self, dc_sample: RolloutSample) -> None:
        """Remove the environment of an interrupted episode that will not go on."""
        partial = dc_sample.partial_agent_data
        if isinstance(partial, SWESample):
            removal = self._flow.on_abort(partial, _CANCELLED)
            await (removal if self._runner is None else self._runner.on_flow_worker(removal))

    async def _roll_out(self, dc_sample: RolloutSample) -> RolloutSample:
        try:
            sample = await self._flow.preprocess(dc_sample)
        except EpisodeError as exc:
            make_fallback(dc_sample, exc.ending())
            return dc_sample
        try:
            state = await self.run(sample, dc_sample)
            if state.status is not StepStatus.ABORTED:
                await self._flow.reward(sample)
        except asyncio.CancelledError:
            write_off(sample, dc_sample)
            raise
        await self._flow.project_to_dc_sample(sample, dc_sample)
        return dc_sample

    async def run(self, sample: SWESample, dc_sample: RolloutSample) -> PartialRolloutState:
        """Drive a preprocessed episode to its end and let its environment go; judge nothing yet.

        Raises RolloutGenerationAborted, as the whole does.
        """
        settled = False
        try:
            state = await self._run_state_machine(sample)
            await shielded(self._settle(sample, state))
            settled = True
        finally:
            if not settled:  # cancelled, or a bug: what was started must not stay behind
                await shielded(self._flow.on_abort(sample, _CANCELLED))
        if state.status is StepStatus.ABORTED and _resumable(state.ending):
            save_partial(sample, dc_sample)
            raise RolloutGenerationAborted(f"{sample.episode} was interrupted and can go on")
        return state

    async def _settle(self, sample: SWESample, state: PartialRolloutState) -> None:
        """Let the environment go, or keep it for an interrupted episode's next attempt."""
        if state.status is not StepStatus.ABORTED:
            await self._flow.finalize(sample, state)
        else:
            keep = self._partial_rollout or not _resumable(state.ending)
            await self._flow.on_abort(sample, state if keep else _CANCELLED)

    async def _run_state_machine(self, sample: SWESample) -> PartialRolloutState:
        state = sample.m.rollout.state
        while True:
            match state.status if state is not None else StepStatus.NEEDS_GENERATION:
                case StepStatus.NEEDS_GENERATION:
                    state = await self._flow.run_generation_step(sample, state)
                case StepStatus.NEEDS_ENV_STEP:
                    assert state is not None
                    state = await self._flow.run_env_step(sample, state)
                case StepStatus.TERMINATED | StepStatus.ABORTED:
                    assert state is not None
                    return state
                case other:
                    assert_never(other)


_CANCELLED = PartialRolloutState(status=StepStatus.ABORTED)


def _resumable(ending: Ending | None) -> bool:
    return ending is not None and ending.cause is Cause.WEIGHT_SYNC
