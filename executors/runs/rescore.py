"""Rescore: a run's patches judged again, without an engine, into a file beside the old one.

    samples.jsonl, tasks.jsonl ─▶ flow.reward in fresh environments ─▶ samples.rescored.jsonl

Owns which samples are judged: those that were submitted with a patch, also where the judge had
failed. Everything else is carried over as it was. The old files are not touched.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from agentflow.observe.events import NullEvents
from agentflow.runner import AsyncioRunner
from agentflow.swe.scheduling_hooks import NoHooks
from agentflow.types import Cause, Ending, EpisodeId, RolloutSample, SWERolloutResult
from executors.assembly import load_flow
from executors.lifetimes import with_lifetimes
from executors.runs.files import write_atomic
from executors.runs.run_rows import read_rows, read_run
from executors.runs.task_file import read_tasks
from executors.termination import classify
from executors.wiring import rehearse_engine, select_tasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.protocols import AgentFlow

_JUDGED = frozenset({Cause.SUBMITTED, Cause.EVAL_FAILED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rescored:
    """What came of it."""

    path: Path
    """The new file."""
    before: Sequence[Mapping[str, Any]]
    after: Sequence[Mapping[str, Any]]
    """Rows of the same samples, in the same order."""
    judged: int
    unknown: list[str] = field(default_factory=list)
    """Episodes that could not be judged, because nobody knows their task any more."""

    def lines(self) -> Iterator[str]:
        """Compare the two, for a person."""
        rows = list(zip(self.before, self.after, strict=True))
        changed = [(old, new) for old, new in rows if old["reward"] != new["reward"]]
        yield (
            f"judged {self.judged} of {len(rows)} samples again: resolved"
            f" {_resolved(self.before)} before, {_resolved(self.after)} now; {len(changed)} changed"
        )
        for old, new in changed:
            yield (
                f"{old['uid']}#{old['replica_index']}: {old['reward']:g} {old['termination']} →"
                f" {new['reward']:g} {new['termination']}"
            )
        if self.unknown:
            yield f"not judged, their tasks are unknown: {', '.join(self.unknown)}"


async def rescore(config: AgentflowConfig, run_dir: Path) -> Rescored:
    """Judge a run again as it was configured. Raises ConfigError, OutputError."""
    before = read_rows(run_dir)
    tasks = {str(task["instance_id"]): task for task in read_tasks(run_dir) or select_tasks(config)}
    config = with_lifetimes(config, tasks.values())
    due = [row for row in before if row["patch"] is not None and row["cause"] in _JUDGED]
    known = [row for row in due if row["instance_id"] in tasks]
    judged = await _judge_all(config, run_dir, known, tasks)
    after = [judged.get(row["key"], row) for row in before]
    path = _free_path(run_dir)
    lines = (orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE) for row in after)
    write_atomic(path, b"".join(lines))
    return Rescored(
        path=path,
        before=before,
        after=after,
        judged=len(known),
        unknown=[f"{r['uid']}#{r['replica_index']}" for r in due if r["instance_id"] not in tasks],
    )


async def _judge_all(
    config: AgentflowConfig,
    run_dir: Path,
    rows: Sequence[Mapping[str, Any]],
    tasks: Mapping[str, Mapping[str, Any]],
) -> dict[str, dict[str, Any]]:
    """Return the new rows by key."""
    async with contextlib.AsyncExitStack() as stack:
        runner = AsyncioRunner(seed=config.run.seed)
        stack.callback(runner.close)
        access = rehearse_engine(config, list(tasks.values()))
        stack.push_async_callback(_on_flow_worker, runner, access.engine)
        flow = load_flow(
            config,
            access,
            NoHooks(),
            runner=runner,
            events=NullEvents(),
            run_id=read_run(run_dir).get("id"),
        )
        stack.push_async_callback(_on_flow_worker, runner, flow)
        room = asyncio.Semaphore(config.rollout.reward_concurrency)

        async def judged(row: Mapping[str, Any]) -> dict[str, Any]:
            async with room:
                return await runner.on_flow_worker(_judge(flow, row, tasks[row["instance_id"]]))

        async with asyncio.TaskGroup() as group:
            running = {row["key"]: group.create_task(judged(row)) for row in rows}
        return {key: task.result() for key, task in running.items()}


async def _judge(
    flow: AgentFlow, row: Mapping[str, Any], task: Mapping[str, Any]
) -> dict[str, Any]:
    episode = EpisodeId(uid=row["uid"], replica_index=row["replica_index"])
    sample = await flow.preprocess(RolloutSample(episode=episode, task=task))
    rollout = sample.m.rollout
    rollout.patch, rollout.result = row["patch"], SWERolloutResult.SUBMIT
    rollout.ending = Ending(cause=Cause.SUBMITTED, phase="generation")
    await flow.reward(sample)
    ending, reward = rollout.ending, float(sample.reward or 0.0)
    return {
        **row,
        "reward": reward,
        "remove_sample": ending.cause is not Cause.SUBMITTED,
        "termination": classify(ending, reward=reward),
        "cause": ending.cause,
        "phase": ending.phase,
        "message": ending.message,
        "verdict": rollout.verdict,
        "reward_s": rollout.reward_s,
        "reward_before": row["reward"],
    }


async def _on_flow_worker(runner: AsyncioRunner, part: Any) -> None:
    await runner.on_flow_worker(part.close())


def _free_path(run_dir: Path) -> Path:
    path, number = run_dir / "samples.rescored.jsonl", 2
    while path.exists():
        path, number = run_dir / f"samples.rescored.{number}.jsonl", number + 1
    return path


def _resolved(rows: Sequence[Mapping[str, Any]]) -> int:
    return sum(row["termination"] == "resolved" for row in rows)
