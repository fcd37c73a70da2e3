"""ActionLevelSWEAgentFlow: the episodes of one engine, cut into actions and scheduled one by one.

An episode is one coroutine, `submit_sample`, that waits for its turn, takes it, and tells how it
ended. Whose turn it is, is decided by the pure `ActionScheduler`; the two workers only give turns:

    submit_sample ▶ new ▶ start ▶ pending ▶ generation ▶ env queue ▶ command ▶ hp | lp resume ▶ …
                                                └▶ finalize ▶ reward queue ▶ judge ▶ done

An episode's failure, or a bug in it, reaches the caller that waits in `submit_sample`, and never
another episode. Everything here runs on the flow worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from agentflow.aio import shielded
from agentflow.errors import (
    ConfigError,
    EngineError,
    RolloutGenerationAborted,
    WorkerCancelled,
)
from agentflow.outcomes import save_partial, write_off
from agentflow.scheduling import OUT, AbortReason, ActionScheduler, Event, Stage
from agentflow.swe.agent_kinds import driven_by_actions
from agentflow.swe.flow import WITHDRAWN, SWEAgentFlow, aborted_generation
from agentflow.swe.kv_housing import KVHousing
from agentflow.swe.waiting_lines import ranking
from agentflow.types import Cause, StepStatus, SyncMode
from priority.residency import Residency

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from agentflow.engine.turns import EngineAccess, TurnModel
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
    from agentflow.types import PartialRolloutState, RolloutSample
    from priority.snapshot import PrioritySnapshot


logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True, eq=False)
class _Episode:
    """One episode between `submit_sample` and its end."""

    item: WorkItem
    sample: SWESample
    dc_sample: RolloutSample
    task: asyncio.Task[None]
    """What it lives in."""
    turn: asyncio.Future[None]
    """Comes true when the scheduler dispatches it."""
    bug: BaseException | None = None
    """Of something that ran beside it; it ends by it."""

    def end_by(self, bug: BaseException) -> None:
        """Cut it short wherever it is; its caller gets `bug`."""
        if self.bug is None:
            self.bug = bug
            self.task.cancel()


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
        self._core = ActionScheduler(scheduling.limits, scheduling.policy)
        self._hooks = scheduling.hooks
        self._partial_rollout = scheduling.partial_rollout
        self._kv_share = scheduling.kv_share
        self._housing = KVHousing() if scheduling.kv_share is not None else None
        self._core.housing = self._housing
        self._episodes: dict[WorkItem, _Episode] = {}
        self._workers: list[asyncio.Task[None]] = []
        self._beside: set[asyncio.Task[None]] = set()
        """Aborts and predictions under way."""
        self._closed = False
        self._broken: BaseException | None = None
        """What ended a worker."""
        self._moved = asyncio.Event()
        """Set by every move, and wakes all who wait in `_until_moved` then."""
        self.progress = 0
        """Counts up whenever an episode moves; readable on any thread."""
        self._turns: dict[Stage, Callable[[_Episode], Awaitable[None]]] = {
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
        loop = self._ensure_scheduler()
        resumes = sample.episode in self._envs
        item = self._core.submit(sample.episode, self._runner.now(), resumes=resumes)
        task = asyncio.current_task()
        assert task is not None
        episode = _Episode(
            item=item, sample=sample, dc_sample=dc_sample, task=task, turn=loop.create_future()
        )
        self._episodes[item] = episode
        self._moved.set()
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
                del self._episodes[item]
                self._moved.set()

    async def _withdraw(self, episode: _Episode) -> None:
        self._advance(episode.item, Event.FAILED)
        if episode.dc_sample.ending is None:
            write_off(episode.sample, episode.dc_sample)
        await self.on_abort(episode.sample, WITHDRAWN)

    def _advance(self, item: WorkItem, event: Event) -> None:
        self._core.advance(item, event, self._runner.now())
        self.progress += 1
        self._moved.set()

    # --- the workers --------------------------------------------------------------------------

    def _ensure_scheduler(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise RuntimeError("this flow is closed; make a new one")
        if self._broken is not None:
            raise self._broken
        loop = asyncio.get_running_loop()
        if not self._workers:
            self._workers = [
                loop.create_task(self._processor_worker(), name="processor"),
                loop.create_task(self._interaction_worker(), name="interaction"),
            ]
            for worker in self._workers:
                worker.add_done_callback(self._worker_ended)
        return loop

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """Let a bug in scheduling reach everybody who waits; without it they would for ever."""
        bug = WorkerCancelled(worker.get_name()) if worker.cancelled() else worker.exception()
        assert bug is not None, "workers never return"
        if self._closed:
            return
        self._broken = bug
        for episode in self._episodes.values():
            episode.end_by(bug)

    async def _processor_worker(self) -> None:
        """Give generation turns, and have generations aborted for those that must not wait."""
        await self._learn_kv_memory()
        while True:
            now = self._runner.now()
            for item in self._core.generate(now):
                self._give_turn(item)
            for item in self._core.preempt(now):
                self._abort(item)
            await self._until_moved()

    async def _learn_kv_memory(self) -> None:
        """Keep contexts within the engine's KV memory, where that is asked for and known."""
        if self._housing is None or self._kv_share is None:
            return
        try:
            info = await self.model.engine.info()
        except EngineError as exc:
            logger.warning("contexts may exceed KV memory, whose size is not known: %s", exc)
            return
        if info.kv_tokens is not None:
            self._housing.residency = Residency(info.kv_tokens, share=self._kv_share)

    async def _interaction_worker(self) -> None:
        """Give turns to what needs an environment: starts, commands, rewards."""
        while True:
            for item in self._core.interact(self._runner.now()):
                self._give_turn(item)
            await self._until_moved()

    async def _until_moved(self) -> None:
        """Wait for the next move. Look before you wait: the first to wake clears the event."""
        await self._moved.wait()
        self._moved.clear()

    def _give_turn(self, item: WorkItem) -> None:
        turn = self._episodes[item].turn
        if not turn.done():  # or its caller has just gone, and it is about to be withdrawn
            turn.set_result(None)

    # --- turns --------------------------------------------------------------------------------

    async def _run_start(self, episode: _Episode) -> None:
        state = await self.run_start_step(episode.sample)
        if state.status is StepStatus.ABORTED:
            await self.project_to_dc_sample(episode.sample, episode.dc_sample)
            self._advance(episode.item, Event.FAILED)
            return
        self._fire_replica_inflight(episode)
        self._advance(episode.item, Event.STARTED)

    async def _run_generation(self, episode: _Episode) -> None:
        item, sample = episode.item, episode.sample
        if item.aborting is None:
            assert sample.model is not None
            sample.model.priority = int(item.high)  # ranks within a class: the server is fcfs
            state = await self.run_generation_step(sample, sample.m.rollout.state)
        else:
            state = aborted_generation("aborted before it was sent")
        if not self._goes_on(episode, state):
            await self._route_end(episode, state)

    async def _run_command(self, episode: _Episode) -> None:
        state = episode.sample.m.rollout.state
        assert state is not None
        state = await self.run_env_step(episode.sample, state)
        if not self._goes_on(episode, state):
            await self._route_end(episode, state)

    async def _run_reward(self, episode: _Episode) -> None:
        await self.reward(episode.sample)
        await self.project_to_dc_sample(episode.sample, episode.dc_sample)
        self._advance(episode.item, Event.REWARDED)

    def _take_note(self, episode: _Episode) -> None:
        """Tell how long the episode's context is, where that matters."""
        if self._housing is not None:
            record = episode.sample.record
            prompt = record.prompt_len
            self._housing.holds(episode.item, prompt=prompt, own=len(record) - prompt)

    def _goes_on(self, episode: _Episode, state: PartialRolloutState) -> bool:
        """Queue what the episode needs next; False: nothing, it stops here."""
        self._take_note(episode)
        event = _NEEDS.get(state.status)
        if event is None:
            return False
        self._advance(episode.item, event)
        if state.pending_action is not None:
            self._predict(episode)
        return True

    async def _route_end(self, episode: _Episode, state: PartialRolloutState) -> None:
        if state.status is StepStatus.ABORTED:
            await self._route_aborted(episode, state)
        else:
            self._advance(episode.item, Event.TERMINATED)
            await self._finalize_async(episode, state)

    async def _route_aborted(self, episode: _Episode, state: PartialRolloutState) -> None:
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
            await self.on_abort(sample, state if self._partial_rollout else WITHDRAWN)
            self._core.detached += self._envs.keeps(sample.episode)
            save_partial(sample, dc_sample)
            self._advance(item, Event.INTERRUPTED)
            raise RolloutGenerationAborted(f"{sample.episode} was interrupted and can go on")

    async def _finalize_async(self, episode: _Episode, state: PartialRolloutState) -> None:
        sample = episode.sample
        await self.finalize(sample, state)
        ending = sample.m.rollout.ending
        if ending is not None and ending.cause is Cause.SUBMITTED:
            self._advance(episode.item, Event.FINALIZED)
        else:  # nothing to judge: `reward` only says so
            await self._run_reward(episode)

    # --- hooks --------------------------------------------------------------------------------

    def _fire_replica_inflight(self, episode: _Episode) -> None:
        self._hooks.replica_inflight(episode.sample.episode)

    def _predict(self, episode: _Episode) -> None:
        seq = episode.item.generations
        prediction = self._hooks.predict(episode.sample, gen_turn_seq=seq)
        if prediction is not None:
            self._run_beside(episode, self._predict_and_report(episode.item, prediction, seq))

    async def _predict_and_report(
        self, item: WorkItem, prediction: Awaitable[float | None], seq: int
    ) -> None:
        """Predict while the command runs; an answer that comes too late is discarded."""
        tokens = await prediction
        if tokens is not None:
            self._core.predict(item, tokens, generation=seq)

    def use_snapshot(self, snapshot: PrioritySnapshot) -> None:
        """Rank what queues from now on by `snapshot`; callable from any thread."""
        self._core.snapshot = snapshot

    def _run_beside(self, episode: _Episode, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._beside.add(task)
        task.add_done_callback(partial(self._ran_beside, episode))

    def _ran_beside(self, episode: _Episode, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if task.cancelled() or (bug := task.exception()) is None:
            return
        if episode.item in self._episodes:
            episode.end_by(bug)
        else:
            logger.error("%s: a bug beside it, after its end", episode.sample.episode, exc_info=bug)

    # --- in view ------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Episodes by stage; callable from any thread."""
        return {str(stage): len(place) for stage, place in self._core.places.items()}

    def whereabouts(self) -> list[str]:
        """Say of every submitted episode where it is; callable from any thread."""
        return [f"{e.sample.episode} {e.item.stage}" for e in list(self._episodes.values())]

    async def ranking(self) -> dict[str, list[dict[str, Any]]]:
        """Who waits for what, the one that is next first, with what put it there."""
        return ranking(self._core)

    # --- aborts and weight syncs --------------------------------------------------------------

    def _abort(self, item: WorkItem) -> None:
        episode = self._episodes[item]
        assert episode.sample.model is not None
        self._run_beside(episode, self._ask_to_abort(episode.sample.model))

    async def _ask_to_abort(self, model: TurnModel) -> None:
        try:
            await model.abort()
        except EngineError as exc:  # then the generation itself ends, or fails, and says so
            logger.warning("an abort could not be sent: %s", exc)

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start; return when the mode's condition for an update holds.

        `abort` ends those in flight, `drain` waits for them, the others leave them to the engine.
        Starts, commands and rewards go on.
        """
        await self._runner.on_flow_worker(self._pause(mode))

    async def resume_generations(self) -> None:
        """Dispatch generations again."""
        await self._runner.on_flow_worker(self._resume_dispatch())

    async def _pause(self, mode: SyncMode) -> None:
        self._core.paused = True
        if mode is SyncMode.ABORT:
            for item in self._core.interrupt_all():
                self._abort(item)
        if mode in {SyncMode.ABORT, SyncMode.DRAIN}:
            while self._core.places[Stage.GENERATING]:
                await self._until_moved()

    async def _resume_dispatch(self) -> None:
        self._core.paused = False
        self._moved.set()

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
        self._closed = True
        for episode in self._episodes.values():
            episode.task.cancel()
        while self._episodes:
            await self._until_moved()
        tasks = [*self._workers, *self._beside]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._workers.clear()
        await super().close()


_NEEDS = {
    StepStatus.NEEDS_GENERATION: Event.NEEDS_GENERATION,
    StepStatus.NEEDS_ENV_STEP: Event.NEEDS_ENV_STEP,
}
"""What a step's status asks the scheduler for; the others end the episode, or its attempt."""
