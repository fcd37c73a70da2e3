"""What a person sees: the plan, the progress, the result."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Self

import yaml
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from agentflow.types import Cause
from executors.data.journal_schema import FILE as JOURNAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from types import TracebackType

    from agentflow.config import AgentflowConfig
    from agentflow.types import RolloutSample
    from executors.runs.session import Session
    from executors.runs.summary import Summary

_MAX_ROWS = 50
"""A longer table is no longer read; samples.jsonl has them all."""

_REASON_LENGTH = 400
"""Characters of an episode's reason; a failed command may bring its whole output."""

_PLAIN_WIDTH = 120
"""Columns where the output is no terminal."""


def make_console() -> Console:
    """Make the console of standard output; wide enough for tables where that is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=_PLAIN_WIDTH)


class TerminalWatcher:
    """Shows ended episodes: a bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console) -> None:
        self.console = console
        """Where it is shown."""
        self._planned = 0
        self._bar: Progress | None = None
        self._told: set[tuple[Cause, str]] = set()
        self.samples: list[RolloutSample] = []
        """Those that have ended, in that order."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def started(self, planned: int) -> None:
        """Begin to show."""
        self._planned = planned
        if self.console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self.console,
            )
            self._bar.add_task("episodes", total=planned)
            self._bar.start()

    def ended(self, sample: RolloutSample) -> None:
        """Show one ended episode."""
        self.samples.append(sample)
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
        else:
            self._line(sample)
        self._reason(sample)

    def _line(self, sample: RolloutSample) -> None:
        facts = sample.facts
        seconds = facts.generation_s + facts.environment_s + facts.reward_s
        self.console.print(
            f"[{len(self.samples)}/{self._planned}] {sample.episode} {sample.termination}"
            f" reward {sample.rewards:g}, {facts.turns} turns, {seconds:.1f} s",
            markup=False,
            soft_wrap=True,
        )

    def _reason(self, sample: RolloutSample) -> None:
        """Say why an episode failed, once for all that failed for the same reason."""
        ending = sample.ending
        if ending is None or ending.cause is Cause.SUBMITTED or not ending.message:
            return
        if (ending.cause, ending.message) in self._told:
            return
        self._told.add((ending.cause, ending.message))
        message = " ".join(ending.message.split())
        if len(message) > _REASON_LENGTH:
            message = message[:_REASON_LENGTH] + " … (all of it is in samples.jsonl)"
        self.console.print(f"      {ending.cause}: {message}", markup=False, soft_wrap=True)


def make_watcher() -> TerminalWatcher:
    """Make the watcher for this process's standard output."""
    return TerminalWatcher(make_console())


def print_plan(config: AgentflowConfig, *, episodes: int) -> None:
    """Print the resolved configuration and what would run."""
    text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    out = make_console()
    out.print(text, markup=False, soft_wrap=True, end="")
    out.print(
        f"# would roll out {episodes // config.run.n} tasks x {config.run.n} = {episodes}"
        f" episodes on {config.engine.url}, {config.rollout.max_concurrency} at a time, into"
        f" {config.run.out}",
        markup=False,
        soft_wrap=True,
    )


def print_tasks(tasks: Sequence[Mapping[str, Any]]) -> None:
    """Print one row a task."""
    from agentflow.swe.tasks import parse_task  # noqa: PLC0415  # a run needs no schema here

    table = Table("instance_id", "source", "repo", "fail to pass", "pass to pass")
    for row in tasks:
        task = parse_task(row)
        counts = (str(len(task.FAIL_TO_PASS)), str(len(task.PASS_TO_PASS)))
        table.add_row(task.instance_id, task.source.type, task.repo, *counts)
    make_console().print(table)


def headline(text: str) -> None:
    """Print what comes next."""
    make_console().print(f"== {text}", markup=False, soft_wrap=True)


def print_comparison(results: Mapping[str, Sequence[RolloutSample]]) -> None:
    """Print one row a task with each policy's reward, and how many each resolved."""
    policies = list(results)
    rewards = {
        policy: {str(sample.episode): sample for sample in samples}
        for policy, samples in results.items()
    }
    table = Table("episode", *(f"{policy} reward" for policy in policies))
    for episode in sorted(rewards[policies[0]]):
        cells = (rewards[policy].get(episode) for policy in policies)
        table.add_row(episode, *(f"{s.rewards:.1f} {s.termination}" if s else "-" for s in cells))
    out = make_console()
    out.print(table)
    for policy, samples in results.items():
        resolved = sum(sample.rewards == 1.0 for sample in samples)
        out.print(f"{policy}: resolved {resolved} of {len(samples)}")


def print_summary(rollout: Session, samples: Sequence[RolloutSample]) -> None:
    """Print a row for each episode, the figures of the whole run, and how it can go on."""
    out = make_console()
    table = Table("episode", "ended as", "cause", "reward", "turns", "tokens", "seconds")
    for sample in samples[:_MAX_ROWS]:
        table.add_row(*_row(sample))
    if samples:
        out.print(table)
    if len(samples) > _MAX_ROWS:
        out.print(f"and {len(samples) - _MAX_ROWS} more, in {rollout.dir.path}/samples.jsonl")
    for line in _figures(rollout.summary):
        out.print(line, markup=False, soft_wrap=True)
    kept = f"kept in  {rollout.dir.path}, run {rollout.dir.run_id}"
    out.print(kept, markup=False, soft_wrap=True)
    if (rollout.dir.path / JOURNAL).exists():  # a run that is done has none
        go_on = f"go on by agentflow run --resume {shlex.quote(str(rollout.dir.path))}"
        out.print(go_on, markup=False, soft_wrap=True)


def print_metrics(metrics: Mapping[str, float]) -> None:
    """Print one line a metric."""
    out = make_console()
    for name in sorted(metrics):
        out.print(f"{name} {metrics[name]:g}", markup=False, soft_wrap=True)


def _figures(summary: Summary) -> Iterator[str]:
    classes = ", ".join(f"{kind} {count}" for kind, count in summary.by_class.items() if count)
    yield (
        f"resolved {summary.resolved} of {summary.episodes} episodes ({summary.planned} planned):"
        f" {classes or 'none ended'}"
    )
    tokens = asdict(summary.tokens)
    received, unseen = tokens.pop("received"), tokens.pop("unseen")
    parts = [f"{name} {count}" for name, count in tokens.items() if count or name == "delivered"]
    yield f"tokens   received {received} = {' + '.join(parts)}" + (
        "" if unseen is None else f"; unseen {unseen}"
    )
    yield (
        f"seconds  wall {summary.wall_s:.1f}, generation {summary.generation_s:.1f}, environment"
        f" {summary.environment_s:.1f}, reward {summary.reward_s:.1f}"
    )


def _row(sample: RolloutSample) -> tuple[str, ...]:
    facts, ending = sample.facts, sample.ending
    seconds = facts.generation_s + facts.environment_s + facts.reward_s
    return (
        str(sample.episode),
        str(sample.termination),
        str(ending.cause) if ending is not None else "",
        f"{sample.rewards:g}",
        str(facts.turns),
        str(facts.generated_tokens),
        f"{seconds:.1f}",
    )
