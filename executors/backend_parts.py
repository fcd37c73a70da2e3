"""BackendParts: what a started RolloutBackend consists of, and how it is put together."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from agentflow.observe.events import NullEvents
from agentflow.observe.jsonl import JsonlEvents
from agentflow.protocols import EngineAdmin, Versioned
from executors.assembly import limits_by_worker, load_flow, make_workers
from executors.data import journal_schema
from executors.data.coordinator import DataCoordinator
from executors.data.groups import GroupRules, StragglerRule
from executors.data.journal import Journal
from executors.data.observers import Observers
from executors.data.resuming import carried_tokens, read_journal
from executors.data.token_books import TokenBooks
from executors.runs.files import OutputError
from executors.runs.logs import logging_to
from executors.runs.run_dir import RunDir, RunStatus
from executors.runs.run_rows import read_rows
from executors.runs.summary import Summary, TokenLedger
from executors.runs.task_file import TaskFile
from executors.runs.token_meter import MeteredModel
from executors.scheduling import scheduling_facts
from executors.termination import classify
from executors.watching.watch import Watch
from executors.weight_sync import WeightSync
from executors.wiring import reach_engine

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from agentflow.config import AgentflowConfig, GroupsConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import EventSink, Model
    from agentflow.runner import AsyncioRunner
    from agentflow.types import RolloutSample
    from executors.data.books import Restored
    from executors.data.journal_schema import Contents
    from executors.data.observers import BookObserver
    from executors.worker import RolloutWorker

    EngineMaker = Callable[[AgentflowConfig, Sequence[Mapping[str, Any]]], EngineAccess]


class BackendParts:
    """What a started backend consists of."""

    def __init__(
        self,
        config: AgentflowConfig,
        access: EngineAccess,
        runner: AsyncioRunner,
        *,
        run_dir: RunDir | None,
        observer: BookObserver,
    ) -> None:
        self.events: EventSink = NullEvents()
        self.watch: Watch | None = None
        self.left: Contents | None = None
        """Of an earlier process."""
        self.rows = set[str]()
        """Groups that it kept samples of."""
        if run_dir is not None:
            events = self.events = JsonlEvents(run_dir.path / "events.jsonl", runner)
            self.watch = Watch(run_dir.path, events, runner=runner, config=config, held=True)
        self.engine: Model = access.engine
        self.meter = MeteredModel(access.engine)
        self._facts = scheduling_facts(limits_by_worker(config, len(self.meter.replicas())))
        self.workers: list[RolloutWorker] = []
        """One for every replica of the engine."""
        self.run_dir = run_dir
        self.books = TokenBooks(self.meter.received)
        self.summary = Summary(planned=0)
        self.failed: str | None = None
        self._config = config
        self._runner = runner
        self.journal = make_journal(config, runner)
        self.coordinator = DataCoordinator(
            runner=runner,
            on_ended=self._ended,
            events=self.events,
            max_attempts=config.rollout.max_attempts,
            rules=make_rules(config.groups),
            observer=Observers(self.books, observer, *self._task_files(run_dir)),
            journal=self.journal,
        )

    @classmethod
    async def build(
        cls,
        config: AgentflowConfig,
        stack: contextlib.AsyncExitStack,
        runner: AsyncioRunner,
        *,
        make: EngineMaker,
        tasks: Sequence[Mapping[str, Any]],
        observer: BookObserver,
        resume: bool = False,
    ) -> BackendParts:
        """Make them, or go on with what an earlier process left; `stack` takes them down."""
        stack.callback(runner.close)
        run_dir = left = None
        if config.run.out is not None:
            run_dir = RunDir(Path(config.run.out), runner=runner)
            if resume:
                stack.callback(run_dir.close)
                run_dir.take_over()
                left = read_journal(run_dir.path, holder=journal_schema.TRAINER)
            else:
                run_dir.check()
        access = make(config, tasks)
        parts = cls(config, access, runner, run_dir=run_dir, observer=observer)
        stack.push_async_callback(_on_flow_worker, runner, parts.meter.close)
        reach = partial(reach_engine, parts.meter, url=str(config.engine.url))
        model = await runner.on_flow_worker(reach())
        parts.left = left
        parts.open_run_dir(stack, model=model.name)
        load = partial(
            load_flow,
            runner=runner,
            events=parts.events,
            on_turn=run_dir.save_trajectory if run_dir is not None else None,
            keeper=parts.journal,
            run_id=run_dir.run_id if run_dir is not None else None,
        )
        workers = make_workers(
            config, access, parts.meter, parts.coordinator, stack=stack, runner=runner, load=load
        )
        parts.use(workers)
        return parts

    def _task_files(self, run_dir: RunDir | None) -> list[TaskFile]:
        self._tasks = [TaskFile(run_dir.path)] if run_dir is not None else []
        return self._tasks

    def use(self, workers: list[RolloutWorker]) -> None:
        """Take the workers, and the weight sync over them."""
        engines = [self.engine] if isinstance(self.engine, EngineAdmin) else []
        self.workers = workers
        if self.watch is not None:
            self.watch.use([worker.flow for worker in workers])
        self.sync = WeightSync(self.workers, engines, runner=self._runner, events=self.events)

    def open_run_dir(self, stack: contextlib.AsyncExitStack, *, model: str) -> None:
        """Keep what ends, where `run.out` says so."""
        if self.run_dir is None or self.watch is None:
            return
        stack.callback(self.watch.close)
        self.watch.serve()
        stack.callback(self.run_dir.close)
        if self.left is None:
            self.run_dir.open(self._config, argv=(), model=model)
        else:
            self.run_dir.reopen(argv=(), unended=self.left.unended())
            for row in read_rows(self.run_dir.path):
                self.summary.add_row(row)
                self.rows.add(row["uid"])
        stack.enter_context(logging_to(self.run_dir.path / "logs" / "agentflow.log"))
        for tasks in self._tasks:
            stack.callback(tasks.close)
            tasks.open()
        stack.callback(self._finish, began=self._runner.now())
        if self.journal is not None:
            self.journal.on_failure = self.coordinator.fail
            stack.callback(self.journal.close)  # its last commits complete the last groups
            self.journal.open()
            self.journal.start()
        stack.callback(self._end_events)
        self.events.emit("run_started", planned=0, **self._facts)

    def restore(self, group: Sequence[Restored]) -> None:
        """Take in a group of an earlier process."""
        self.meter.received.update(carried_tokens(group))
        for member in group:
            if member.ended:
                self.books.restored(member.sample)
        self.coordinator.restore(group)

    def set_version(self, version: int) -> None:
        """The weights are `version`; an engine that does not know by itself is told."""
        self.coordinator.weights_updated(version)
        self.events.emit("weights_updated", version=version)
        if isinstance(self.engine, Versioned):
            self.engine.weight_version = version

    def _ended(self, sample: RolloutSample) -> None:
        assert sample.ending is not None
        sample.termination = classify(sample.ending, reward=sample.rewards)
        self.books.ended(sample)
        if self.run_dir is not None:
            self.run_dir.save_sample(sample)
            self.summary.add(sample)

    def _end_events(self) -> None:
        self.events.emit("run_ended", status=self._status)
        if isinstance(self.events, JsonlEvents):
            self.events.close()

    @property
    def _status(self) -> RunStatus:
        return RunStatus.DONE if self.failed is None else RunStatus.FAILED

    def _finish(self, *, began: float) -> None:
        assert self.run_dir is not None
        assert self.watch is not None
        figures = self.books.figures()
        self.summary.planned = self.coordinator.counts().issued
        self.summary.samples = self.coordinator.counts()
        self.summary.wall_s = self._runner.now() - began
        self.summary.tokens = TokenLedger.of_books(figures)
        try:
            self.watch.finish(trace=True)
        except OutputError as failure:
            self.failed = self.failed or str(failure)
        self.run_dir.finish(self._status, summary=self.summary, error=self.failed)


def make_journal(config: AgentflowConfig, runner: AsyncioRunner) -> Journal | None:
    """Make the journal that is asked for. Raises ConfigError when it has no place."""
    if not config.rollout.journal:
        return None
    if config.run.out is None:
        raise ConfigError("rollout.journal: needs run.out, the directory to keep it in")
    path = Path(config.run.out) / journal_schema.FILE
    return Journal(path, keep_results=True, now=runner.now)


def make_rules(groups: GroupsConfig) -> GroupRules:
    """Say how groups come to the trainer."""
    return GroupRules(
        buffer=groups.buffer,
        straggler=StragglerRule(groups.straggler),
        deadline_s=groups.deadline_s if groups.deadline_s is not None else float("inf"),
        refills=groups.refills,
        staleness=groups.staleness,
        retries=groups.retries,
        dead_in_a_row=groups.dead_in_a_row,
    )


async def _on_flow_worker(
    runner: AsyncioRunner, call: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    await runner.on_flow_worker(call())
