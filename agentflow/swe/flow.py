"""SWEAgentFlow: the steps of a software-engineering episode.

The environment of every episode in progress (`held_envs`) lives from its start to `finalize` or
`on_abort`; it outlives an interruption and is found again by the episode's identity. Expected
failures become the state's `ending` here; anything else is a bug and propagates.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from agentflow.aio import boundary, shielded
from agentflow.engine.token_record import mask_of
from agentflow.engine.turns import TurnModel
from agentflow.errors import (
    DiffFailed,
    EnvStartFailed,
    EpisodeError,
    EvalFailed,
    GenerationAborted,
    PreprocessFailed,
)
from agentflow.observe.events import NullEvents
from agentflow.outcomes import write_off
from agentflow.protocols import Gauging, Leasing
from agentflow.runner import AsyncioRunner
from agentflow.swe.held_envs import HeldEnvs, attach
from agentflow.swe.kinds import driven_by_actions, is_mortal
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.types import (
    DEFAULT_WORKDIR,
    Blame,
    Cause,
    ContainerSpec,
    Ending,
    EpisodeFacts,
    PartialRolloutState,
    StepStatus,
    SWERolloutResult,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping

    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import (
        ActionLevelAgent,
        AgentBuilder,
        ContainerEnvBuilder,
        EventSink,
        Keeper,
        Mortal,
        Runner,
        Runtime,
        RuntimeBuilder,
    )
    from agentflow.types import EpisodeId, RolloutSample

    Step = Coroutine[Any, Any, PartialRolloutState]

logger = logging.getLogger(__name__)


class SWEAgentFlow:
    """The steps of an episode: generate, act, finalize, reward, project (`AgentFlow`)."""

    def __init__(
        self,
        agent: AgentBuilder,
        env: ContainerEnvBuilder,
        runtime: RuntimeBuilder,
        model: EngineAccess,
        *,
        runner: Runner | None = None,
        events: EventSink | None = None,
        on_turn: Callable[[SWESample], None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """`on_turn` sees the sample after every step, to save its trajectory.

        With `keeper` an episode driven by actions can be gone on with by another process.
        """
        self.agent = agent
        self.env = env
        self.runtime = runtime
        self.model = model
        self._runner = runner if runner is not None else AsyncioRunner()
        self._events = events if events is not None else NullEvents()
        self._on_turn = on_turn
        self._keeper = keeper
        self._envs = HeldEnvs(env, runner=self._runner, events=self._events, keeper=keeper)

    # --- before -------------------------------------------------------------------------------

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Build agent and runtime off the loop, or bind the partial state of an earlier attempt.

        Raises PreprocessFailed.
        """
        partial = sample.partial_agent_data
        if isinstance(partial, SWESample):
            if not sample.restart and await self._is_at_hand(partial):
                return self._resume(partial, sample.attempt)
            # It is too old, or its environment is gone.
            await self.give_up(partial)
            write_off(partial, sample)
            self._events.emit("restarted_clean", sample.episode, attempt=sample.attempt)
        try:
            with boundary(PreprocessFailed):
                return await self._runner.to_thread(self._build, sample)
        except PreprocessFailed as exc:
            _log(sample.episode, exc)
            raise

    def _resume(self, partial: SWESample, attempt: int) -> SWESample:
        assert partial.model is not None
        partial.attempt = attempt
        partial.model.bind(self.model, attempt=attempt)
        if (env := self._envs.get(partial.episode)) is not None:
            attach(partial, env)
        self._events.emit("resumed", partial.episode, attempt=attempt)
        return partial

    async def _is_at_hand(self, partial: SWESample) -> bool:
        held = partial.episode in self._envs or await self._envs.take_back(partial)
        return held or await self._come_back(partial)

    async def _come_back(self, partial: SWESample) -> bool:
        """Take over what a dead process left of an episode; False: it must start anew."""
        if not _is_judged_next(partial):
            lease, partial.m.lease = partial.m.lease, None
            if lease is None or not isinstance(self.env, Leasing):
                return False
            state = partial.m.rollout.state
            if state is not None and state.status is StepStatus.NEEDS_ENV_STEP:
                # Its command may have run, wholly or in part: nobody knows what the files are.
                await self.env.release(lease)
                return False
            if not await self._envs.inherit(partial, lease):
                return False
        with boundary(PreprocessFailed):  # its materials do not travel
            partial.m.runtime = await self._runner.to_thread(self.runtime.build, partial)
        return True

    def _build(self, dc_sample: RolloutSample) -> SWESample:
        task = dc_sample.task
        spec = ContainerSpec(
            image=task.get("image", ""),
            workdir=task.get("workdir", DEFAULT_WORKDIR),
            env=task.get("env", {}),
            labels={"agentflow.episode": dc_sample.episode.key},
        )
        sample = SWESample(
            episode=dc_sample.episode,
            m=SWEMeta(data=SWEData(task=task, container_args=spec)),
            attempt=dc_sample.attempt,
            validate=dc_sample.validate,
        )
        sample.model = TurnModel(
            episode=sample.episode,
            record=sample.record,
            sampling=dc_sample.sampling or self.model.sampling,
            access=self.model,
            attempt=sample.attempt,
        )
        sample.m.runtime = self.runtime.build(sample)
        sample.m.agent = self.agent.build(sample)
        return sample

    # --- steps --------------------------------------------------------------------------------

    def run_start_step(self, sample: SWESample) -> Step:
        """Start the environment ahead of the first generation, unless a resume found it."""
        return self._step(sample, sample.m.rollout.state, self._start(sample))

    def run_generation_step(self, sample: SWESample, state: PartialRolloutState | None) -> Step:
        """Start the environment if there is none, then generate one turn."""
        return self._step(sample, state, self._generate(sample))

    def run_env_step(self, sample: SWESample, state: PartialRolloutState) -> Step:
        """Run the pending command."""
        return self._step(sample, state, self._act(sample, state))

    async def _step(
        self,
        sample: SWESample,
        state: PartialRolloutState | None,
        action: Awaitable[PartialRolloutState],
    ) -> PartialRolloutState:
        rollout = sample.m.rollout
        try:
            new = await action
        except GenerationAborted as exc:
            rollout.state = state
            self._keep(sample)
            return aborted_generation(str(exc))
        except EpisodeError as exc:
            new = self._failed(sample, exc)
        rollout.state = new
        if new.ending is not None:
            rollout.ending = new.ending
        if self._on_turn is not None:
            self._on_turn(sample)
        self._keep(sample)
        return new

    def _keep(self, sample: SWESample) -> None:
        if self._keeper is not None:
            self._keeper.keep(sample)

    def _failed(self, sample: SWESample, exc: EpisodeError) -> PartialRolloutState:
        ending = exc.ending()
        if ending.cause.blame is Blame.POLICY:
            limit = ending.cause in _LIMITS
            sample.m.rollout.result = SWERolloutResult.EXCEED if limit else SWERolloutResult.FAILURE
            return PartialRolloutState(status=StepStatus.TERMINATED, ending=ending)
        self._events.emit("failed", sample.episode, cause=ending.cause, message=ending.message)
        _log(sample.episode, exc)
        return PartialRolloutState(status=StepStatus.ABORTED, ending=ending)

    async def _start(self, sample: SWESample) -> PartialRolloutState:
        if sample.episode not in self._envs and not _is_judged_next(sample):
            await self._envs.start(sample)
        return sample.m.rollout.state or _NEEDS_GENERATION

    async def _generate(self, sample: SWESample) -> PartialRolloutState:
        state = sample.m.rollout.state
        if state is not None and _is_judged_next(sample):
            return state
        env = self._envs.get(sample.episode)
        if env is None:
            env = await self._envs.start(sample)
        elif is_mortal(env):  # it may have died while its episode waited
            await cast("Mortal", env).check_alive()
        agent = sample.m.agent
        assert agent is not None
        assert sample.model is not None
        sample.model.begin_step()
        before, status, command = sample.model.received, StepStatus.ABORTED, None
        if self._keeper is not None:
            self._keeper.generating(sample)
        self._events.emit("generation_started", sample.episode, attempt=sample.attempt)
        try:
            if driven_by_actions(agent):
                status, command = await cast("ActionLevelAgent", agent).generation_step()
            else:
                sample.m.rollout.result = await agent.run_episode(env)
                status = StepStatus.TERMINATED
        finally:
            tokens = sample.model.received - before
            self._events.emit("generation_ended", sample.episode, status=status, tokens=tokens)
        return self._after(sample, status, command)

    async def _act(self, sample: SWESample, state: PartialRolloutState) -> PartialRolloutState:
        agent, command = sample.m.agent, state.pending_action
        env = self._envs.get(sample.episode)
        assert env is not None
        assert agent is not None
        assert command is not None
        status = StepStatus.ABORTED
        if self._keeper is not None:  # that it was due must be known before it can have run
            await self._keeper.kept()
        self._events.emit("command_started", sample.episode)
        try:
            status, _ = await cast("ActionLevelAgent", agent).env_step(env, command)
        finally:
            self._events.emit("command_ended", sample.episode, status=status)
        return self._after(sample, status, None)

    def _after(
        self, sample: SWESample, status: StepStatus, command: str | None
    ) -> PartialRolloutState:
        if status is StepStatus.NEEDS_GENERATION:
            return _NEEDS_GENERATION
        ending = self._ending(sample) if status is StepStatus.TERMINATED else None
        return PartialRolloutState(status=status, pending_action=command, ending=ending)

    def _ending(self, sample: SWESample) -> Ending:
        rollout = sample.m.rollout
        if rollout.ending is not None:  # the agent knows it more exactly
            return rollout.ending
        cause = _CAUSE_OF[rollout.result or SWERolloutResult.FAILURE]
        return Ending(cause=cause, phase="generation")

    # --- after --------------------------------------------------------------------------------

    async def finalize(self, sample: SWESample, state: PartialRolloutState) -> None:
        """Read the patch out of the environment and remove it."""
        env = self._envs.get(sample.episode)
        try:
            if env is not None and _alive(state.ending):
                with boundary(DiffFailed):
                    await _runtime(sample).diff(env)
                if self._keeper is not None:
                    self._keeper.keep(sample)
                    await self._keeper.kept()
        except EpisodeError as exc:
            _log(sample.episode, exc)
            sample.m.rollout.ending = exc.ending()
        finally:
            await self._envs.stop(sample)

    async def on_abort(self, sample: SWESample, state: PartialRolloutState) -> None:
        """Keep the environment of an interrupted episode for its next attempt; remove others."""
        if state.ending is not None and state.ending.cause is Cause.WEIGHT_SYNC:
            await shielded(self._envs.detach(sample))
            self._events.emit("env_detached", sample.episode)
        else:
            await self._envs.stop(sample)

    async def give_up(self, sample: SWESample) -> None:
        """Remove the environment of an interrupted episode that will not go on."""
        await self.on_abort(sample, WITHDRAWN)

    async def reward(self, sample: SWESample) -> None:
        """Judge the patch in a fresh environment, if the agent submitted; else 0."""
        rollout = sample.m.rollout
        sample.reward = 0.0
        if rollout.ending is None or rollout.ending.cause is not Cause.SUBMITTED:
            return
        began = self._runner.now()
        self._events.emit("reward_started", sample.episode)
        try:
            await self._judge(sample)
        except EpisodeError as exc:
            _log(sample.episode, exc)
            rollout.ending = Ending(cause=Cause.EVAL_FAILED, phase="eval", message=str(exc))
            sample.reward = 0.0
        rollout.reward_s = self._runner.now() - began
        self._events.emit("reward_ended", sample.episode, reward=sample.reward)

    async def _judge(self, sample: SWESample) -> None:
        spec = sample.m.data.container_args
        image = sample.m.rollout.image or spec.image
        labels = {**spec.labels, "agentflow.purpose": "reward"}
        spec = replace(spec, image=image, labels=labels)
        with boundary(EnvStartFailed):
            env = await self.env.start(spec)
        try:
            with boundary(EvalFailed):
                await _runtime(sample).eval(env)
        finally:
            await shielded(env.stop())

    async def project_to_dc_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Copy tokens, reward, ending and facts; mask out what the infrastructure caused."""
        record, rollout, model = sample.record, sample.m.rollout, sample.model
        assert model is not None
        dc_sample.prompts = record.prompts.copy()
        dc_sample.responses = record.responses.copy()
        dc_sample.rollout_log_prob = record.rollout_log_prob.copy()
        dc_sample.weight_versions = record.weight_versions
        dc_sample.response_mask = mask_of(dc_sample.weight_versions)
        dc_sample.rewards = float(sample.reward or 0.0)
        dc_sample.result = rollout.result
        dc_sample.ending = rollout.ending
        infra = rollout.ending is None or rollout.ending.cause.blame is Blame.INFRASTRUCTURE
        dc_sample.remove_sample = infra
        dc_sample.facts = EpisodeFacts(
            turns=model.turns,
            generated_tokens=record.generated,
            forked_tokens=model.forked_tokens,
            forks=model.forks,
            generation_s=model.generation_s,
            environment_s=rollout.environment_s,
            reward_s=rollout.reward_s,
            image=rollout.image,
            submission=rollout.submission,
            patch=rollout.patch,
            verdict=rollout.verdict,
            messages=tuple(sample.messages),
        )

    def env_gauges(self) -> Mapping[str, Mapping[str, float]]:
        """What environments wait for, where this flow's own builder tells it (`Gauging`)."""
        if self._envs.owns_builder and isinstance(self.env, Gauging):
            return self.env.gauges()
        return {}

    def share_env(self) -> None:
        """Leave `env` to another flow, which is closed later than this one and closes it."""
        self._envs.owns_builder = False

    async def close(self) -> None:
        """Remove the environments of episodes that were interrupted and never resumed."""
        await shielded(self._envs.close())


def _log(episode: EpisodeId, exc: EpisodeError) -> None:
    """Keep where a failure arose: the sample carries its message alone."""
    logger.info("%s failed: %s", episode, exc.ending().cause, exc_info=exc)


def aborted_generation(message: str) -> PartialRolloutState:
    """Make the state of an episode whose generation somebody aborted."""
    ending = Ending(cause=Cause.WEIGHT_SYNC, phase="generation", message=message)
    return PartialRolloutState(status=StepStatus.ABORTED, ending=ending)


WITHDRAWN = PartialRolloutState(status=StepStatus.ABORTED)
"""How an episode stands that nobody will go on with."""

_NEEDS_GENERATION = PartialRolloutState(status=StepStatus.NEEDS_GENERATION)

_LIMITS = frozenset({Cause.CONTEXT_FULL, Cause.STEP_LIMIT, Cause.COST_LIMIT, Cause.TIME_LIMIT})

_CAUSE_OF = {
    SWERolloutResult.SUBMIT: Cause.SUBMITTED,
    SWERolloutResult.EXCEED: Cause.STEP_LIMIT,
    SWERolloutResult.FAILURE: Cause.FORMAT_ERRORS,
}
"""For agents that tell only how they left, not why."""


def _is_judged_next(sample: SWESample) -> bool:
    """Whether an episode is over but for its judgement, which needs its patch alone."""
    state = sample.m.rollout.state
    over = state is not None and state.status is StepStatus.TERMINATED
    return over and sample.m.rollout.patch is not None


def _runtime(sample: SWESample) -> Runtime:
    assert sample.m.runtime is not None
    return sample.m.runtime


def _alive(ending: Ending | None) -> bool:
    """Whether the environment can still be asked for its patch."""
    return ending is None or ending.cause not in {Cause.CONTAINER_KILLED, Cause.ENV_DIED}
