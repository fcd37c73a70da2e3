"""EvalSession: one evaluation, from its configuration to metrics.json.

    config ─▶ data sets ─▶ TaskScheduler.execute_eval ─▶ metrics.json, eval_details/, run files

Whatever is wrong with the input raises ConfigError before the run directory is touched; once it is
open, run.json tells how the evaluation ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from agentflow.config import TasksConfig
from agentflow.errors import AgentflowError, ConfigError
from agentflow.observe.events import NullEvents
from agentflow.observe.jsonl import JsonlEvents
from agentflow.runner import AsyncioRunner
from agentflow.swe.scheduling_hooks import NoHooks
from executors.assembly import load_flow
from executors.failures import first_failure
from executors.lifetimes import with_lifetimes
from executors.runs.files import OutputError, write_atomic
from executors.runs.logs import logging_to
from executors.runs.run_dir import RunDir, RunStatus
from executors.runs.sample_rows import ended_facts
from executors.runs.session import RolloutFailed
from executors.runs.summary import Summary
from executors.runs.token_meter import MeteredModel
from executors.task_scheduler.cluster_layout import _build_placement_pool, pool_of
from executors.task_scheduler.data_source import EVAL_DATASET, EvalDataset
from executors.task_scheduler.gate import GatedEngine
from executors.task_scheduler.handlers import STUDENT, flow_agent
from executors.task_scheduler.iteration import IterationPublisher
from executors.task_scheduler.scheduler import TaskScheduler
from executors.task_scheduler.spec import EvaluatorSpec
from executors.wiring import build_engine, reach_engine, runnable_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import AgentFlow, EventSink
    from executors.runs.session import Watcher
    from executors.task_scheduler.agents import BaseAgent
    from executors.task_scheduler.eval_config import EvalConfig
    from executors.task_scheduler.placement import PlacementPool
    from executors.task_scheduler.tasks import Task

logger = logging.getLogger(__name__)


class EvalSession:
    """One evaluation over the data sets of a configuration, kept in a run directory."""

    def __init__(
        self,
        config: EvalConfig,
        *,
        argv: Sequence[str] = (),
        watcher: Watcher | None = None,
        make_engine: Callable[[EvalConfig, Sequence[Mapping[str, Any]]], EngineAccess] = (
            build_engine
        ),
        load_tasks: Callable[[EvalConfig], Sequence[Mapping[str, Any]]] = runnable_tasks,
    ) -> None:
        """Raises ConfigError when a needed value is missing."""
        _require(config)
        self._config = config
        self._argv = argv
        self._watcher = watcher
        self._make_engine = make_engine
        self._load_tasks = load_tasks
        self._runner = AsyncioRunner(seed=config.run.seed)
        self.dir = RunDir(Path(str(config.run.out)), runner=self._runner)
        self.summary = Summary(planned=0)
        self._events: EventSink = NullEvents()
        self.metrics: dict[str, float] = {}
        """`eval/{name}/…`, once it is done."""

    async def run(self) -> Summary:
        """Evaluate. Raises ConfigError, RolloutFailed; cancelling ends it cleanly."""
        config = self._config
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._runner.close)
            self.dir.check()
            datasets = [self._dataset(name) for name in range(len(config.eval.datasets))]
            rows = [row for set_ in datasets for row in set_.rows]
            config = self._config = with_lifetimes(config, rows)
            pool = _pool(config)
            access = self._make_engine(config, rows)
            meter = MeteredModel(access.engine)
            gate = GatedEngine({STUDENT: meter})
            stack.push_async_callback(gate.close)
            model = await reach_engine(meter, url=str(config.engine.url))
            events = JsonlEvents(self.dir.path / "events.jsonl", self._runner)
            flow = self._load_flow(dataclasses.replace(access, engine=gate), events)
            scheduler = self._scheduler(flow_agent(flow, gate), datasets, pool)
            stack.push_async_callback(scheduler.close)
            scheduler.check_eval()
            stack.callback(self.dir.close)
            self.dir.open(config, argv=self._argv, model=model.name)
            stack.enter_context(logging_to(self.dir.path / "logs" / "agentflow.log"))
            await self._drive(scheduler, meter, events)
        return self.summary

    def abandon(self) -> None:
        """Say in run.json that the run was interrupted; for a process about to exit at once."""
        if not self.dir.is_ours:
            return
        with contextlib.suppress(OutputError):
            self.dir.mark(RunStatus.INTERRUPTED, error="ended before its environments were removed")

    # --- parts --------------------------------------------------------------------------------

    def _dataset(self, index: int) -> EvalDataset:
        wanted = self._config.eval.datasets[index]
        tasks = TasksConfig(source=wanted.source, only=wanted.only, limit=wanted.limit)
        try:
            rows = self._load_tasks(self._config.model_copy(update={"tasks": tasks}))
        except ConfigError as error:
            raise ConfigError(f"eval.datasets.{index} ({wanted.name!r}): {error}") from error
        return EvalDataset(
            name=wanted.name, rows=rows, overrides=wanted.overrides(), n_samples=wanted.n_samples
        )

    def _load_flow(self, access: EngineAccess, events: JsonlEvents) -> AgentFlow:
        return load_flow(
            self._config,
            access,
            NoHooks(),
            runner=self._runner,
            events=events,
            on_turn=self.dir.save_trajectory,
            run_id=self.dir.run_id,
        )

    def _scheduler(
        self, handler: BaseAgent, datasets: Sequence[EvalDataset], pool: PlacementPool | None
    ) -> TaskScheduler:
        section = self._config.eval
        try:
            spec = EvaluatorSpec(
                evaluator_id="swe",
                handler=handler,
                resource=section.batch(),
                run_resource=section.run.resource(),
                eval_resource=section.judge.resource(),
                batch_size=None if pool is None else section.batch_size,
                default_stopping=section.default_stopping(),
            )
        except ConfigError as error:
            raise ConfigError(f"eval.budget, eval.run, eval.judge: {error}") from error
        if pool is not None and not any(spec.sample_resource.amounts):
            raise ConfigError(
                "eval.run and eval.judge: a sample needs nothing, so eval.cluster_layout holds"
                " nothing back; give them cpu, memory_gb or gpu, or take the layout away"
            )
        copies = [set_.n_samples or section.n_samples for set_ in datasets]
        planned = sum(n * len(set_.rows) for n, set_ in zip(copies, datasets, strict=True))
        self.summary.planned = planned
        return TaskScheduler(
            [spec],
            args=self._config.args(),
            eval_datasets=datasets,
            pool=pool,
            publisher=IterationPublisher(environ={}),  # the student is alone here, and its own
            runner=self._runner,
            collector=self._ended,
        )

    # --- driving ------------------------------------------------------------------------------

    async def _drive(
        self, scheduler: TaskScheduler, meter: MeteredModel, events: JsonlEvents
    ) -> None:
        """Run the evaluation; whatever happens, leave the directory saying how it ended."""
        began = self._runner.now()
        if self._watcher is not None:
            self._watcher.started(self.summary.planned)
        self._events = events
        events.emit("run_started", planned=self.summary.planned)
        status, error = RunStatus.FAILED, None
        try:
            self.metrics = (await scheduler.execute_eval()).metrics
            status = RunStatus.DONE
        except asyncio.CancelledError:
            status = RunStatus.INTERRUPTED
            raise
        except ExceptionGroup as group:
            error = first_failure(group)
            logger.exception("the evaluation failed")
        except AgentflowError as failure:
            error = str(failure)
            logger.info("the evaluation failed", exc_info=True)
        finally:
            events.emit("run_ended", status=status)
            events.close()
            self.summary.close(meter.received, wall_s=self._runner.now() - began)
            error = error or self._objection()
            if error and status is RunStatus.DONE:
                status = RunStatus.FAILED
            self._finish(status, error)
        if error:
            raise RolloutFailed(error)

    def _objection(self) -> str | None:
        """Say why an evaluation that went through is no success after all."""
        summary = self.summary
        if summary.tokens.unaccounted:
            left_over = summary.tokens.unaccounted
            return f"the token ledger does not close: {left_over} tokens are unaccounted for"
        if summary.episodes and summary.masked == summary.episodes:
            return "every episode ended by the infrastructure; eval_details/ has the causes"
        return None

    def _finish(self, status: RunStatus, error: str | None) -> None:
        option = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
        try:
            data = orjson.dumps(self.metrics, option=option)
            write_atomic(self.dir.path / "metrics.json", data)
            self.dir.finish(status, summary=self.summary, error=error)
        except OutputError as failure:
            if error is None:
                raise RolloutFailed(str(failure)) from failure
            logger.info("%s", failure)  # the first failure is the one to tell

    def _ended(self, task: Task) -> None:
        for sample in task.samples:
            self.dir.save_sample(sample, dataset=sample.metadata[EVAL_DATASET])
            self.summary.add(sample)
            self._events.emit("ended", sample.episode, **ended_facts(sample))
            if self._watcher is not None:
                self._watcher.ended(sample)


def _require(config: EvalConfig) -> None:
    missing = [
        f"{name}: is missing"
        for value, name in (
            (config.eval.datasets, "eval.datasets"),
            (config.engine.url, "engine.url"),
            (config.run.out, "run.out"),
        )
        if not value
    ]
    names = [set_.name for set_ in config.eval.datasets]
    missing += [f"eval.datasets: two are named {n!r}" for n in set(names) if names.count(n) > 1]
    if missing:
        raise ConfigError("\n".join(missing))


def _pool(config: EvalConfig) -> PlacementPool | None:
    section = config.eval
    layout = section.cluster_layout
    if isinstance(layout, dict):
        return pool_of(layout, num_cpus=section.num_cpus, memory_gb=section.memory_gb)
    return _build_placement_pool(layout, num_cpus=section.num_cpus, memory_gb=section.memory_gb)
