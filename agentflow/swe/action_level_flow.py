"""ActionLevelSWEAgentFlow: the episodes of one engine, cut into actions and scheduled one by one.

An episode is one coroutine, `submit_sample`, that waits for its turn, takes it, and tells how it
ended. Whose turn it is, is decided by the pure `ActionScheduler`; the workers only give turns:

    submit_sample ▶ new ▶ start ▶ pending ▶ generation ▶ env queue ▶ command ▶ hp | lp resume ▶ …
                                                └▶ finalize ▶ reward queue ▶ judge ▶ done

An episode's failure, or a bug in it, reaches the caller that waits in `submit_sample`, and never
another episode. Everything here runs on the flow worker's loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentflow.aio import shielded
from agentflow.errors import ConfigError, RolloutGenerationAborted
from agentflow.outcomes import save_partial, write_off
from agentflow.scheduling import OUT, AbortReason, Event, Stage
from agentflow.swe.flow import WITHDRAWN, SWEAgentFlow, aborted_generation
from agentflow.swe.kinds import driven_by_actions
from agentflow.swe.live_episode import LiveEpisode
from agentflow.swe.turn_workers import TurnWorkers
from agentflow.swe.waiting_lines import ranking
from agentflow.types import Cause, StepStatus

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import (
        AgentBuilder,
        ContainerEnvBuilder,
        EventSink,
        Keeper,
        Runner,
        RuntimeBuilder,
    )
    from agentflow.scheduling import WorkItem
    from agentflow.swe.sample import SWESample
    from agentflow.swe.scheduling_hooks import Scheduling
    from agentflow.types import EpisodeId, PartialRolloutState, RolloutSample, SyncMode
    from priority.snapshot import PrioritySnapshot


class ActionLevelSWEAgentFlow(SWEAgentFlow):
    """SWEAgentFlow's steps as scheduled actions (`ActionLevelFlow`)."""

    def __init__(
        self,
        agent: AgentBuilder,
        env: ContainerEnvBuilder,
        runtime: RuntimeBuilder,
        model: EngineAccess,
        *,
        scheduling: Scheduling,
        runner: Runner | None = None,
        events: EventSink | None = None,
        on_turn: Callable[[SWESample], None] | None = None,
        keeper: Keeper | None = None,
    ) -> None:
        """Serve one engine replica; the other parts are SWEAgentFlow's."""
        super().__init__(
            agent,
            env,
            runtime,
            model,
            runner=runner,
            events=events,
            on_turn=on_turn,
            keeper=keeper,
        )
        self._workers = TurnWorkers(scheduling, model.engine, self._runner)
        self._core = self._workers.core
        self._episodes = self._workers.episodes
        self._advance = self._workers.advance
        self._hooks = scheduling.hooks
        self._partial_rollout = scheduling.partial_rollout
        self._judged: Callable[[EpisodeId], None] | None = None
        self._turns: dict[Stage, Callable[[LiveEpisode], Awaitable[None]]] = {
            Stage.STARTING: self._run_start,
            Stage.GENERATING: self._run_generation,
            Stage.ACTING: self._run_command,
            Stage.REWARDING: self._run_reward,
        }

    # --- an episode's way in and out ----------------------------------------------------------

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Build agent and runtime off the loop, or bind an interrupted episode's state again.

        Raises PreprocessFailed, and ConfigError for an agent that cannot be driven by actions.
        """
        return await self._runner.on_flow_worker(super().preprocess(sample))

    async def _come_back(self, partial: SWESample) -> bool:
        came = await super()._come_back(partial)
        self._core.detached += partial.episode in self._envs
        return came

    def _build(self, dc_sample: RolloutSample) -> SWESample:
        sample = super()._build(dc_sample)
        if not driven_by_actions(sample.m.agent):
            raise ConfigError(
                f"agent: {type(sample.m.agent).__name__} cannot be driven by actions; it needs"
                " generation_step and env_step, as action_level_minisweagent has them"
            )
        return sample

    def submit_sample(
        self, sample: SWESample, dc_sample: RolloutSample
    ) -> Coroutine[Any, Any, None]:
        """Run an episode to its end on the flow worker and fill `dc_sample` in.

        Raises RolloutGenerationAborted, with `partial_agent_data` set, when a weight sync
        interrupted it. Cancelling the wait ends the episode and removes its environment.
        """
        return self._runner.on_flow_worker(self._submit_sample_async(sample, dc_sample))

    async def _submit_sample_async(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        loop = self._workers.ensure()
        resumes = sample.episode in self._envs
        item = self._core.submit(sample.episode, self._runner.now(), resumes=resumes)
        task = asyncio.current_task()
        assert task is not None
        episode = LiveEpisode(
            item=item, sample=sample, dc_sample=dc_sample, task=task, turn=loop.create_future()
        )
        self._workers.enter(episode)
        try:
            if resumes:
                self._take_note(episode)
                self._core.detached -= 1
                self._fire_replica_inflight(episode)
            while item.stage not in OUT:
                await episode.turn
                episode.turn = loop.create_future()
                await self._turns[item.stage](episode)
        except asyncio.CancelledError:
            if episode.bug is None or task.uncancel():
                raise
            raise episode.bug from None
        finally:
            try:
                if item.stage not in OUT:  # its caller has gone, or it hit a bug
                    await shielded(self._withdraw(episode))
            finally:
                self._workers.leave(episode)

    async def _withdraw(self, episode: LiveEpisode) -> None:
        self._advance(episode.item, Event.FAILED)
        if episode.dc_sample.ending is None:
            write_off(episode.sample, episode.dc_sample)
        await self.on_abort(episode.sample, WITHDRAWN)

    # --- turns --------------------------------------------------------------------------------

    async def _run_start(self, episode: LiveEpisode) -> None:
        state = await self.run_start_step(episode.sample)
        if state.status is StepStatus.ABORTED:
            await self.project_to_dc_sample(episode.sample, episode.dc_sample)
            self._advance(episode.item, Event.FAILED)
            return
        self._fire_replica_inflight(episode)
        self._advance(episode.item, Event.STARTED)

    async def _run_generation(self, episode: LiveEpisode) -> None:
        item, sample = episode.item, episode.sample
        if item.aborting is None:
            assert sample.model is not None
            sample.model.priority = int(item.high)  # ranks within a class: the server is fcfs
            state = await self.run_generation_step(sample, sample.m.rollout.state)
        else:
            state = aborted_generation("aborted before it was sent")
        if not self._goes_on(episode, state):
            await self._route_end(episode, state)

    async def _run_command(self, episode: LiveEpisode) -> None:
        state = episode.sample.m.rollout.state
        assert state is not None
        state = await self.run_env_step(episode.sample, state)
        if not self._goes_on(episode, state):
            await self._route_end(episode, state)

    async def _run_reward(self, episode: LiveEpisode) -> None:
        await self.reward(episode.sample)
        await self.project_to_dc_sample(episode.sample, episode.dc_sample)
        self._advance(episode.item, Event.REWARDED)

    def _take_note(self, episode: LiveEpisode) -> None:
        """Tell how long the episode's context is, where that matters."""
        if (housing := self._workers.housing) is not None:
            record = episode.sample.record
            prompt = record.prompt_len
            housing.holds(episode.item, prompt=prompt, own=len(record) - prompt)

    def _goes_on(self, episode: LiveEpisode, state: PartialRolloutState) -> bool:
        """Queue what the episode needs next; False: nothing, it stops here."""
        self._take_note(episode)
        event = _NEEDS.get(state.status)
        if event is None:
            return False
        self._advance(episode.item, event)
        if state.pending_action is not None:
            self._predict(episode)
        return True

    async def _route_end(self, episode: LiveEpisode, state: PartialRolloutState) -> None:
        if state.status is StepStatus.ABORTED:
            await self._route_aborted(episode, state)
        else:
            self._advance(episode.item, Event.TERMINATED)
            await self._finalize_async(episode, state)

    async def _route_aborted(self, episode: LiveEpisode, state: PartialRolloutState) -> None:
        item, sample, dc_sample = episode.item, episode.sample, episode.dc_sample
        if state.ending is None or state.ending.cause is not Cause.WEIGHT_SYNC:
            self._advance(item, Event.TERMINATED)  # its slot is free while it is cleaned up
            await self.on_abort(sample, state)
            await self.project_to_dc_sample(sample, dc_sample)
            self._advance(item, Event.REWARDED)
        elif item.aborting is AbortReason.PREEMPTION:
            self._events.emit("preempted", sample.episode, preemptions=item.preemptions + 1)
            self._advance(item, Event.NEEDS_GENERATION)
        else:
            self._advance(item, Event.INTERRUPTED)  # an update waits for generations alone
            await self.on_abort(sample, state if self._partial_rollout else WITHDRAWN)
            self._core.detached += self._envs.keeps(sample.episode)
            save_partial(sample, dc_sample)
            self._advance(item, Event.INTERRUPTED)
            raise RolloutGenerationAborted(f"{sample.episode} was interrupted and can go on")

    async def _finalize_async(self, episode: LiveEpisode, state: PartialRolloutState) -> None:
        sample = episode.sample
        await self.finalize(sample, state)
        ending = sample.m.rollout.ending
        if ending is not None and ending.cause is Cause.SUBMITTED:
            self._advance(episode.item, Event.FINALIZED)
            if self._judged is not None:
                self._judged(sample.episode)
        else:  # nothing to judge: `reward` only says so
            await self._run_reward(episode)

    # --- hooks --------------------------------------------------------------------------------

    def _fire_replica_inflight(self, episode: LiveEpisode) -> None:
        self._hooks.replica_inflight(episode.sample.episode)

    def _predict(self, episode: LiveEpisode) -> None:
        seq = episode.item.generations
        prediction = self._hooks.predict(episode.sample, gen_turn_seq=seq)
        if prediction is not None:
            work = self._predict_and_report(episode.item, prediction, seq)
            self._workers.beside.run(episode, work)

    async def _predict_and_report(
        self, item: WorkItem, prediction: Awaitable[float | None], seq: int
    ) -> None:
        """Predict while the command runs; an answer that comes too late is discarded."""
        tokens = await prediction
        if tokens is not None:
            self._core.predict(item, tokens, generation=seq)

    def on_judged(self, call: Callable[[EpisodeId], None]) -> None:
        """Call `call`, on the flow worker, with every episode from when it waits for a judge."""
        self._judged = call

    def use_snapshot(self, snapshot: PrioritySnapshot) -> None:
        """Rank what queues from now on by `snapshot`; callable from any thread."""
        self._core.snapshot = snapshot

    # --- in view ------------------------------------------------------------------------------

    @property
    def progress(self) -> int:
        """Counts up whenever an episode moves; readable on any thread."""
        return self._workers.progress

    def gauges(self) -> dict[str, float]:
        """Episodes by stage; callable from any thread."""
        return {str(stage): len(place) for stage, place in self._core.places.items()}

    def whereabouts(self) -> list[str]:
        """Say of every submitted episode where it is; callable from any thread."""
        return [f"{e.sample.episode} {e.item.stage}" for e in list(self._episodes.values())]

    async def ranking(self) -> dict[str, list[dict[str, Any]]]:
        """Who waits for what, the one that is next first, with what put it there."""
        return ranking(self._core)

    # --- pauses and the end -------------------------------------------------------------------

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start; return when the mode's condition for an update holds.

        `abort` ends those in flight, `drain` waits for them, the others leave them to the engine.
        Starts, commands and rewards go on.
        """
        await self._runner.on_flow_worker(self._workers.pause(mode))

    async def resume_generations(self) -> None:
        """Dispatch generations again."""
        await self._runner.on_flow_worker(self._workers.resume())

    async def give_up(self, sample: SWESample) -> None:
        """Remove the environment of an interrupted episode that will not go on."""
        await self._runner.on_flow_worker(self._give_up(sample))

    async def _give_up(self, sample: SWESample) -> None:
        self._core.detached -= self._envs.keeps(sample.episode)
        await self.on_abort(sample, WITHDRAWN)

    async def close(self) -> None:
        """End the workers, every action and every environment, cancelled or not. Idempotent."""
        await self._runner.on_flow_worker(shielded(self._close_async()))

    async def _close_async(self) -> None:
        await self._workers.close()
        await super().close()


_NEEDS = {
    StepStatus.NEEDS_GENERATION: Event.NEEDS_GENERATION,
    StepStatus.NEEDS_ENV_STEP: Event.NEEDS_ENV_STEP,
}
"""What a step's status asks the scheduler for; the others end the episode, or its attempt."""
