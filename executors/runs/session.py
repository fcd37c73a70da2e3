"""Rollout: one run, from its configuration to its summary.

    config ─▶ tasks ─▶ samples ─▶ DataCoordinator ─▶ RolloutWorkers ─▶ AgentFlows ─▶ engine
                                        │ ended                           │ after every turn
                                        ▼                                 ▼
                              RunDir.save_sample, Summary        RunDir.save_trajectory

Everything is put together and watched on the caller's loop. Each replica of the engine has a worker
on a thread of its own, where samples end, one at a time. Flows, their environments and the engine,
from its first call to its close, are on the runner's flow worker, where trajectories are saved too,
each episode's own file at a time. Events are written under a lock.

Owns the order in which parts are made and taken down. Whatever is wrong with the input raises
ConfigError before the run directory is touched; once it is open, run.json tells how the run ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from agentflow.aio import beside
from agentflow.errors import AgentflowError, ConfigError
from agentflow.observe.jsonl import JsonlEvents
from agentflow.protocols import EngineAdmin
from agentflow.runner import AsyncioRunner
from executors.assembly import load_flow, make_workers
from executors.data.coordinator import DataCoordinator
from executors.data.journal import Journal
from executors.data.journal_schema import FILE as JOURNAL
from executors.data.resuming import Leftover, carried_tokens, restored
from executors.failures import first_failure
from executors.lifetimes import with_lifetimes
from executors.rehearsal import rehearse
from executors.runs.files import OutputError
from executors.runs.logs import logging_to
from executors.runs.run_dir import RunDir, RunStatus
from executors.runs.summary import Summary
from executors.runs.task_file import TaskFile
from executors.runs.token_meter import MeteredModel
from executors.scheduling import scheduling_facts
from executors.termination import classify
from executors.watching.watch import Watch
from executors.weight_sync import WeightSync
from executors.wiring import (
    build_engine,
    make_samples,
    reach_engine,
    require,
    runnable_tasks,
)
from executors.worker import run_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
    from contextlib import AsyncExitStack

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import Model
    from agentflow.types import RolloutSample
    from executors.worker import RolloutWorker

    EngineMaker = Callable[[AgentflowConfig, Sequence[Mapping[str, Any]]], EngineAccess]
    TaskLoader = Callable[[AgentflowConfig], Sequence[Mapping[str, Any]]]

T = TypeVar("T")

logger = logging.getLogger(__name__)


class RolloutFailed(AgentflowError):
    """The run could not be brought to its end; what had ended before is kept."""


class Watcher(Protocol):
    """Looks on while a run goes, to show it to somebody."""

    def started(self, planned: int) -> None:
        """Take the number of episodes."""
        ...

    def ended(self, sample: RolloutSample) -> None:
        """See a sample that has ended; on a worker's thread, one call at a time."""
        ...


class Session(Protocol):
    """A run that a command line can drive, end, and report on."""

    dir: RunDir
    summary: Summary

    async def run(self) -> Summary:
        """Run to the end. Raises ConfigError, RolloutFailed; cancelling ends it cleanly."""
        ...

    def abandon(self) -> None:
        """Say in run.json that the run was interrupted."""
        ...


class Rollout:
    """One run of an executor over a list of tasks, kept in a run directory."""

    def __init__(
        self,
        config: AgentflowConfig,
        *,
        argv: Sequence[str] = (),
        watcher: Watcher | None = None,
        make_engine: EngineMaker = build_engine,
        load_tasks: TaskLoader = runnable_tasks,
        resume: bool = False,
    ) -> None:
        """`argv` is repeated in run.json; `resume` goes on with what `run.out` holds.

        Raises ConfigError when a needed value is missing.
        """
        require(config)
        assert config.run.out is not None
        self._config = config
        self._argv = argv
        self._watcher = watcher
        self._make_engine = make_engine
        self._load_tasks = load_tasks
        self._runner = AsyncioRunner(seed=config.run.seed)
        self._resume = resume
        self._left: Leftover | None = None
        self._samples: list[RolloutSample] = []
        self.dir = RunDir(Path(config.run.out), runner=self._runner)
        self.summary = Summary(planned=0)
        """Of what has ended so far."""
        self._tasks = TaskFile(self.dir.path)
        self._journal: Journal | None = None
        if config.rollout.journal:
            self._journal = Journal(
                self.dir.path / JOURNAL, keep_results=False, now=self._runner.now
            )

    async def run(self) -> Summary:
        """Roll out every sample. Raises ConfigError, RolloutFailed; cancelling ends it cleanly."""
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._runner.close)
            if self._resume:
                stack.callback(self.dir.close)
                self.dir.take_over()
            access = self._plan()
            engine, meter = access.engine, MeteredModel(access.engine)
            stack.push_async_callback(self._on_flow_worker, meter.close)
            reach = partial(reach_engine, meter, url=str(self._config.engine.url))
            model = await self._on_flow_worker(reach)
            events = JsonlEvents(self.dir.path / "events.jsonl", self._runner)
            coordinator = self._coordinator(events)
            workers = self._workers(access, meter, events, coordinator, stack=stack)
            rehearsal = self._rehearsal(workers, engine, events)
            watch = self._watch(events, workers)
            stack.callback(watch.close)
            watch.serve()
            stack.callback(self.dir.close)
            self._open_dir(model=model.name)
            stack.enter_context(logging_to(self.dir.path / "logs" / "agentflow.log"))
            stack.callback(self._tasks.close)
            self._tasks.open()
            self._open_journal(stack, coordinator)
            scheduled = scheduling_facts({worker.name: worker.config for worker in workers})
            events.emit("run_started", planned=self.summary.planned, **scheduled)
            self._issue(coordinator, meter)
            others = [watch.run] if rehearsal is None else [watch.run, rehearsal]
            work = partial(beside, partial(run_all, workers), others)
            await self._drive(work, coordinator, meter=meter, events=events, watch=watch)
        return self.summary

    async def check(self) -> int:
        """Raise what `run` would, and touch nothing; return the number of episodes planned.

        The engine is made and not asked for anything.
        """
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._runner.close)
            access = self._plan()
            meter = MeteredModel(access.engine)
            stack.push_async_callback(self._on_flow_worker, meter.close)
            events = JsonlEvents(self.dir.path, self._runner)
            workers = self._workers(access, meter, events, self._coordinator(events), stack=stack)
            self._rehearsal(workers, access.engine, events)
        return self.summary.planned

    def abandon(self) -> None:
        """Say in run.json that the run was interrupted; for a process about to exit at once."""
        if not self.dir.is_ours:
            return
        with contextlib.suppress(OutputError):
            self.dir.mark(RunStatus.INTERRUPTED, error="ended before its environments were removed")

    # --- parts --------------------------------------------------------------------------------

    def _plan(self) -> EngineAccess:
        if self._resume:
            left = Leftover.read(self.dir.path)
            if left.planned:
                self._left = left
                self.summary.planned = left.planned
                for row in left.rows:
                    self.summary.add_row(row)
                return self._engine_for(left.tasks())
        else:
            self.dir.check()
        tasks = self._load_tasks(self._config)
        self._samples = make_samples(tasks, replicas=self._config.run.n)
        self.summary.planned = len(self._samples)
        return self._engine_for(tasks)

    def _engine_for(self, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
        self._config = with_lifetimes(self._config, tasks)
        return self._make_engine(self._config, tasks)

    def _coordinator(self, events: JsonlEvents) -> DataCoordinator:
        return DataCoordinator(
            runner=self._runner,
            on_ended=self._ended,
            events=events,
            max_attempts=self._config.rollout.max_attempts,
            journal=self._journal,
            observer=self._tasks,
        )

    def _open_dir(self, *, model: str) -> None:
        if self._resume:
            self.dir.reopen(argv=self._argv)
        else:
            self.dir.open(self._config, argv=self._argv, model=model)

    def _open_journal(self, stack: AsyncExitStack, coordinator: DataCoordinator) -> None:
        journal = self._journal
        if journal is not None:
            journal.on_failure = coordinator.fail
            stack.callback(journal.close)
            journal.open()
            journal.start()

    def _issue(self, coordinator: DataCoordinator, meter: MeteredModel) -> None:
        """Give the coordinator what is to be rolled out, or what is left of it."""
        if self._left is None:
            coordinator.add(self._samples)
        else:
            for group in map(restored, self._left.groups):
                meter.received.update(carried_tokens(group))
                coordinator.restore(group)
                self._samples += [member.sample for member in group]
        coordinator.finish()

    def _workers(
        self,
        access: EngineAccess,
        meter: MeteredModel,
        events: JsonlEvents,
        coordinator: DataCoordinator,
        *,
        stack: AsyncExitStack,
    ) -> list[RolloutWorker]:
        load = partial(
            load_flow,
            runner=self._runner,
            events=events,
            on_turn=self.dir.save_trajectory,
            keeper=self._journal,
            run_id=self.dir.run_id,
        )
        return make_workers(
            self._config, access, meter, coordinator, stack=stack, runner=self._runner, load=load
        )

    def _watch(self, events: JsonlEvents, workers: Sequence[RolloutWorker]) -> Watch:
        watch = Watch(self.dir.path, events, runner=self._runner, config=self._config)
        watch.use([worker.flow for worker in workers])
        return watch

    def _rehearsal(
        self, workers: Sequence[RolloutWorker], engine: Model, events: JsonlEvents
    ) -> Callable[[], Awaitable[None]] | None:
        every_s = self._config.rollout.rehearse_syncs_s
        if every_s is None:
            return None
        if not isinstance(engine, EngineAdmin):
            raise ConfigError(
                f"rollout.rehearse_syncs_s: {every_s}: the engine {self._config.engine.url} cannot"
                " be paused; leave it out"
            )
        sync = WeightSync(workers, [engine], runner=self._runner, events=events)
        return partial(rehearse, sync, engine, every_s=every_s, runner=self._runner)

    async def _on_flow_worker(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await self._runner.on_flow_worker(call())

    # --- driving ------------------------------------------------------------------------------

    async def _drive(
        self,
        work: Callable[[], Awaitable[None]],
        coordinator: DataCoordinator,
        *,
        meter: MeteredModel,
        events: JsonlEvents,
        watch: Watch,
    ) -> None:
        """Run the executor; whatever happens, leave the directory saying how it ended."""
        began = self._runner.now()
        if self._watcher is not None:
            self._watcher.started(len(self._samples))
        status, error = RunStatus.FAILED, None
        try:
            await self._on_flow_worker(meter.watch_engine)
            await work()
            self.summary.tokens.unseen = await self._on_flow_worker(meter.unseen)
            status = RunStatus.DONE
        except asyncio.CancelledError:
            status = RunStatus.INTERRUPTED
            raise
        except ExceptionGroup as group:
            error = first_failure(group)
            logger.exception("the run failed")
        finally:
            events.emit("run_ended", status=status)
            events.close()
            if self._journal is not None:
                self._journal.close()  # its last commits complete the last groups
            coordinator.take_groups()
            self.summary.samples = coordinator.counts()
            self.summary.close(meter.received, wall_s=self._runner.now() - began)
            error = error or self._last_look(watch, status) or self._objection(events, status)
            if error and status is RunStatus.DONE:
                status = RunStatus.FAILED
            self._finish(status, error)
            if self._journal is not None and status is RunStatus.DONE:
                self._journal.remove()
        if error:
            raise RolloutFailed(error)

    def _ended(self, sample: RolloutSample) -> None:
        assert sample.ending is not None
        sample.termination = classify(sample.ending, reward=sample.rewards)
        self.dir.save_sample(sample)
        self.summary.add(sample)
        if self._watcher is not None:
            self._watcher.ended(sample)

    def _last_look(self, watch: Watch, status: RunStatus) -> str | None:
        """Keep the last metrics and the trace; who interrupts a run does not wait for a trace."""
        try:
            watch.finish(trace=status is not RunStatus.INTERRUPTED)
        except OutputError as failure:
            return str(failure)
        return None

    def _objection(self, events: JsonlEvents, status: RunStatus) -> str | None:
        """Say why a run that went through is no success after all, or what is wrong with its books.

        Of one that was interrupted samples are left, which is no error.
        """
        done = status is RunStatus.DONE
        if events.failure is not None:
            return f"events.jsonl is incomplete: {events.failure.strerror}"
        samples = self.summary.samples
        if samples.unaccounted or (done and (samples.open or samples.buffered)):
            return f"the sample ledger does not close: {samples}"
        left_over = self.summary.tokens.unaccounted
        if left_over:
            return f"the token ledger does not close: {left_over} tokens are unaccounted for"
        if done and self.summary.episodes and self.summary.masked == self.summary.episodes:
            causes = sorted({str(s.ending.cause) for s in self._samples if s.ending is not None})
            return f"every episode ended by the infrastructure: {', '.join(causes)}"
        return None

    def _finish(self, status: RunStatus, error: str | None) -> None:
        try:
            self.dir.finish(status, summary=self.summary, error=error)
        except OutputError as failure:
            if error is None:
                raise RolloutFailed(str(failure)) from failure
            logger.info("%s", failure)  # the first failure is the one to tell
