"""ActionLevelSWEAgentFlow: the episodes of one engine, cut into actions and scheduled one by one.

Owns the running actions of all submitted episodes. What runs next is decided by the pure
`ActionScheduler`; the two workers only carry its commands out, and every action's end goes back to
it as an event:

    submit_sample ▶ new ▶ start ▶ pending ▶ generation ▶ env queue ▶ command ▶ hp | lp resume ▶ …
                                                └▶ finalize ▶ reward queue ▶ judge ▶ done

An episode's failure, or a bug in it, reaches the caller that waits in `submit_sample`, and never
another episode. Everything here runs on the flow worker's loop.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, assert_never

from agentflow.aio import shielded
from agentflow.errors import (
    ConfigError,
    EngineError,
    RolloutGenerationAborted,
    WorkerCancelled,
)
from agentflow.outcomes import save_partial, write_off
from agentflow.protocols import ActionLevelAgent
from agentflow.scheduling import (
    OUT,
    AbortReason,
    ActionScheduler,
    CommandKind,
    Event,
    Stage,
    ranking,
)
from agentflow.swe.flow import WITHDRAWN, SWEAgentFlow, aborted_generation
from agentflow.types import Cause, PartialRolloutState, StepStatus, SyncMode
from priority.policies import Fcfs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agentflow.engine.turns import EngineAccess, TurnModel
    from agentflow.protocols import (
        AgentBuilder,
        ContainerEnvBuilder,
        EventSink,
        Keeper,
        Runner,
        RuntimeBuilder,
    )
    from agentflow.scheduling import Command, Limits, WorkItem
    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId, RolloutSample
    from priority.policies import Policy
    from priority.snapshot import PrioritySnapshot


logger = logging.getLogger(__name__)


class SchedulingHooks(Protocol):
    """What a coordinator wants to hear, and may answer, while episodes run."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Hear that an episode has its environment and waits for its first generation."""
        ...

    async def predict(self, sample: SWESample, *, gen_turn_seq: int) -> float | None:
        """Predict the tokens an episode will still generate; None when it cannot be known."""
        ...


class NoHooks:
    """Nobody listens and nothing is predicted: plain fcfs."""

    def replica_inflight(self, episode: EpisodeId) -> None:
        """Do nothing."""

    async def predict(self, sample: SWESample, *, gen_turn_seq: int) -> float | None:  # noqa: ARG002
        """Know nothing."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """How a flow schedules."""

    limits: Limits
    policy: Policy = field(default_factory=Fcfs)
    hooks: SchedulingHooks = field(default_factory=NoHooks)
    partial_rollout: bool = True
    """An episode that a weight sync interrupts goes on with its tokens; False: it starts anew."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Submitted:
    """One episode between `submit_sample` and its end."""

    item: WorkItem
    sample: SWESample
    dc_sample: RolloutSample
    done_future: asyncio.Future[None]
    action: asyncio.Task[None] | None = None
    """What runs for it now."""


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
        self._submitted: dict[WorkItem, _Submitted] = {}
        self._actions: set[asyncio.Task[None]] = set()
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False
        self._broken: BaseException | None = None
        """What ended a worker."""
        self._env_queue: asyncio.Queue[Command] = asyncio.Queue()
        self._dispatch_signal = asyncio.Event()
        self._moved = asyncio.Event()
        self.progress = 0
        """Counts up whenever an episode moves; readable on any thread."""

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
        if not isinstance(sample.m.agent, ActionLevelAgent):
            raise ConfigError(
                f"agent: {type(sample.m.agent).__name__} cannot be driven by actions; it needs"
                " generation_step and env_step, as action_level_minisweagent has them"
            )
        return sample

    async def submit_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Run an episode to its end on the flow worker and fill `dc_sample` in.

        Raises RolloutGenerationAborted, with `partial_agent_data` set, when a weight sync
        interrupted it. Cancelling the wait ends the episode and removes its environment.
        """
        await self._runner.on_flow_worker(self._submit_sample_async(sample, dc_sample))

    async def _submit_sample_async(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        self._ensure_scheduler()
        resumes = sample.episode in self._envs
        submitted = _Submitted(
            item=self._core.submit(sample.episode, self._runner.now(), resumes=resumes),
            sample=sample,
            dc_sample=dc_sample,
            done_future=asyncio.get_running_loop().create_future(),
        )
        self._submitted[submitted.item] = submitted
        if resumes:
            self._core.detached -= 1
            self._fire_replica_inflight(submitted)
        self._dispatch_signal.set()
        told = False
        try:
            await submitted.done_future
            told = True
        except RolloutGenerationAborted:
            told = True
            raise
        finally:
            del self._submitted[submitted.item]
            if not told:
                await shielded(self._withdraw(submitted))

    async def _withdraw(self, submitted: _Submitted) -> None:
        """Take an episode out whose caller has gone, or that hit a bug.

        It may have ended at the same moment, which its caller will never hear.
        """
        future = submitted.done_future
        if not future.cancelled() and (missed := future.exception()) is not None:
            logger.info("%s: withdrawn after %r", submitted.sample.episode, missed)
        if submitted.action is not None and not submitted.action.done():
            submitted.action.cancel()
            await asyncio.wait([submitted.action])
        if submitted.item.stage not in OUT:  # its last action may just have ended it
            self._advance(submitted.item, Event.FAILED)
        elif submitted.item.stage is Stage.LEFT:  # saved for a caller that has gone
            self._core.detached -= self._partial_rollout
        if submitted.dc_sample.ending is None:
            write_off(submitted.sample, submitted.dc_sample)
        await self.on_abort(submitted.sample, WITHDRAWN)

    def _ensure_scheduler(self) -> None:
        if self._closed:
            raise RuntimeError("this flow is closed; make a new one")
        if self._broken is not None:
            raise self._broken
        if not self._workers:
            loop = asyncio.get_running_loop()
            self._workers = [
                loop.create_task(self._processor_worker(), name="processor"),
                loop.create_task(self._interaction_worker(), name="interaction"),
            ]
            for worker in self._workers:
                worker.add_done_callback(self._worker_ended)

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        """Let a bug in scheduling reach everybody who waits; without it they would for ever."""
        bug = WorkerCancelled(worker.get_name()) if worker.cancelled() else worker.exception()
        assert bug is not None, "workers never return"
        if self._closed:
            return
        self._broken = bug
        for submitted in self._submitted.values():
            if not submitted.done_future.done():
                submitted.done_future.set_exception(bug)

    # --- the workers --------------------------------------------------------------------------

    async def _processor_worker(self) -> None:
        """Carry the scheduler's commands out: generations and aborts here, the rest next door."""
        while True:
            await self._dispatch_signal.wait()
            self._dispatch_signal.clear()
            for command in self._core.commands(self._runner.now()):
                match command.kind:
                    case CommandKind.GENERATE:
                        self._run(command.item, self._run_gen_task)
                    case CommandKind.ABORT:
                        self._abort(command.item)
                    case CommandKind.START | CommandKind.ACT | CommandKind.JUDGE:
                        self._env_queue.put_nowait(command)
                    case other:
                        assert_never(other)

    async def _interaction_worker(self) -> None:
        """Run what needs an environment: starts, commands, rewards."""
        actions = {
            CommandKind.START: self._run_start_task,
            CommandKind.ACT: self._run_env_task,
            CommandKind.JUDGE: self._run_reward_task,
        }
        while True:
            command = await self._env_queue.get()
            self._run(command.item, actions[command.kind])

    def _run(
        self, item: WorkItem, action: Callable[[_Submitted], Coroutine[None, None, None]]
    ) -> None:
        submitted = self._submitted.get(item)
        if submitted is None or item.stage in OUT:
            return  # withdrawn between its command and now
        task = asyncio.get_running_loop().create_task(action(submitted))
        submitted.action = task
        self._actions.add(task)
        task.add_done_callback(partial(self._action_ended, submitted))

    def _action_ended(self, submitted: _Submitted, task: asyncio.Task[None]) -> None:
        self._actions.discard(task)
        future = submitted.done_future
        if future.done():
            return
        if task.cancelled():
            if task is submitted.action:  # else an abort, or a prediction that comes too late
                future.cancel()
        elif (bug := task.exception()) is not None:
            future.set_exception(bug)

    def _advance(self, item: WorkItem, event: Event) -> None:
        self._core.advance(item, event, self._runner.now())
        self.progress += 1
        self._dispatch_signal.set()
        if not self._moved.is_set():
            self._moved.set()

    # --- actions ------------------------------------------------------------------------------

    async def _run_start_task(self, submitted: _Submitted) -> None:
        state = await self.run_start_step(submitted.sample)
        if state.status is StepStatus.ABORTED:
            await self.project_to_dc_sample(submitted.sample, submitted.dc_sample)
            self._end(submitted, Event.FAILED)
            return
        self._fire_replica_inflight(submitted)
        self._advance(submitted.item, Event.STARTED)

    async def _run_gen_task(self, submitted: _Submitted) -> None:
        item, sample = submitted.item, submitted.sample
        if item.aborting is None:
            state = await self.run_generation_step(sample, sample.m.rollout.state)
        else:  # aborted before it began
            state = aborted_generation("aborted before it was sent")
        await self._route_after_step(submitted, state)

    async def _run_env_task(self, submitted: _Submitted) -> None:
        state = submitted.sample.m.rollout.state
        assert state is not None
        await self._route_after_step(submitted, await self.run_env_step(submitted.sample, state))

    async def _run_reward_task(self, submitted: _Submitted) -> None:
        await self.reward(submitted.sample)
        await self.project_to_dc_sample(submitted.sample, submitted.dc_sample)
        self._end(submitted, Event.REWARDED)

    async def _route_after_step(self, submitted: _Submitted, state: PartialRolloutState) -> None:
        match state.status:
            case StepStatus.NEEDS_ENV_STEP:
                self._advance(submitted.item, Event.NEEDS_ENV_STEP)
                await self._predict_and_report(submitted)
            case StepStatus.NEEDS_GENERATION:
                self._advance(submitted.item, Event.NEEDS_GENERATION)
            case StepStatus.TERMINATED:
                self._advance(submitted.item, Event.TERMINATED)
                await self._finalize_async(submitted, state)
            case StepStatus.ABORTED:
                await self._route_aborted(submitted, state)
            case other:
                assert_never(other)

    async def _route_aborted(self, submitted: _Submitted, state: PartialRolloutState) -> None:
        item, sample, dc_sample = submitted.item, submitted.sample, submitted.dc_sample
        if state.ending is None or state.ending.cause is not Cause.WEIGHT_SYNC:
            self._advance(item, Event.TERMINATED)  # its slot is free while it is cleaned up
            await self.on_abort(sample, state)
            await self.project_to_dc_sample(sample, dc_sample)
            self._end(submitted, Event.FINALIZED_UNJUDGED)
        elif item.aborting is AbortReason.PREEMPTION:
            self._events.emit("preempted", sample.episode, preemptions=item.preemptions + 1)
            self._advance(item, Event.NEEDS_GENERATION)
        else:
            await self.on_abort(sample, state if self._partial_rollout else WITHDRAWN)
            self._core.detached += self._partial_rollout
            save_partial(sample, dc_sample)
            self._advance(item, Event.INTERRUPTED)
            if not submitted.done_future.done():
                submitted.done_future.set_exception(
                    RolloutGenerationAborted(f"{sample.episode} was interrupted and can go on")
                )

    async def _finalize_async(self, submitted: _Submitted, state: PartialRolloutState) -> None:
        sample = submitted.sample
        await self.finalize(sample, state)
        ending = sample.m.rollout.ending
        if ending is not None and ending.cause is Cause.SUBMITTED:
            self._advance(submitted.item, Event.FINALIZED)
        else:
            await self.reward(sample)  # nothing to judge: it only says so
            await self.project_to_dc_sample(sample, submitted.dc_sample)
            self._end(submitted, Event.FINALIZED_UNJUDGED)

    def _end(self, submitted: _Submitted, event: Event) -> None:
        self._advance(submitted.item, event)
        if not submitted.done_future.done():  # the caller may have gone in this very step
            submitted.done_future.set_result(None)

    # --- hooks --------------------------------------------------------------------------------

    def _fire_replica_inflight(self, submitted: _Submitted) -> None:
        self._hooks.replica_inflight(submitted.sample.episode)

    async def _predict_and_report(self, submitted: _Submitted) -> None:
        """Predict while the command runs; an answer that comes too late is discarded."""
        seq = submitted.item.generations
        tokens = await self._hooks.predict(submitted.sample, gen_turn_seq=seq)
        if tokens is not None:
            self._core.predict(submitted.item, tokens, generation=seq)
            self._dispatch_signal.set()

    def use_snapshot(self, snapshot: PrioritySnapshot) -> None:
        """Rank what queues from now on by `snapshot`; callable from any thread."""
        self._core.snapshot = snapshot

    # --- in view ------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Episodes by stage; callable from any thread."""
        return {str(stage): count for stage, count in self._core.counts().items()}

    def whereabouts(self) -> list[str]:
        """Say of every submitted episode where it is; callable from any thread."""
        return [f"{s.sample.episode} {s.item.stage}" for s in list(self._submitted.values())]

    async def ranking(self) -> dict[str, list[dict[str, Any]]]:
        """Who waits for what, the one that is next first, with what put it there."""
        return ranking(self._core)

    # --- aborts and weight syncs --------------------------------------------------------------

    def _abort(self, item: WorkItem) -> None:
        submitted = self._submitted.get(item)
        if submitted is None or submitted.sample.model is None:
            return
        task = asyncio.get_running_loop().create_task(self._ask_to_abort(submitted.sample.model))
        self._actions.add(task)
        task.add_done_callback(partial(self._action_ended, submitted))

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
            for command in self._core.interrupt_all():
                self._abort(command.item)
        if mode in {SyncMode.ABORT, SyncMode.DRAIN}:
            while self._core.generating:
                self._moved.clear()
                await self._moved.wait()

    async def _resume_dispatch(self) -> None:
        self._core.paused = False
        self._dispatch_signal.set()

    async def give_up(self, sample: SWESample) -> None:
        """Remove the environment of an interrupted episode that will not go on."""
        await self._runner.on_flow_worker(self._give_up(sample))

    async def _give_up(self, sample: SWESample) -> None:
        self._core.detached -= sample.episode in self._envs
        await self.on_abort(sample, WITHDRAWN)

    async def close(self) -> None:
        """End the workers, every action and every environment, cancelled or not. Idempotent."""
        await self._runner.on_flow_worker(shielded(self._close_async()))

    async def _close_async(self) -> None:
        self._closed = True
        for submitted in self._submitted.values():
            submitted.done_future.cancel()
        tasks = [*self._workers, *self._actions]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._workers.clear()
        await super().close()
