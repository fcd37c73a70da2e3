"""PartialCheckpoint: what a rollout has so far, so that a killed one goes on and repeats nothing.

    partial/rollout_000007/plan.pt           the step's prompts, and the source behind them
    partial/rollout_000007/group_000003.pt   one group that has ended

A group's file is written when the group ends, a plan before its first sample starts. The plan of
the step before is kept: it says where the data source stood.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from executors.task_scheduler.records import to_record, to_sample
from executors.task_scheduler.tasks import Task, TaskConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from executors.task_scheduler.stores import Store

_SCHEMA = "agentflow-partial/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRollout:
    """A step as far as it had come."""

    tasks: list[Task]
    """All of them, in order; those in `done` with their results."""
    done: frozenset[int]
    source_state: Mapping[str, Any]
    """The data source behind this step's prompts."""


class PartialCheckpoint:
    """The folder `partial` of a run."""

    def __init__(self, folder: Path, *, store: Store) -> None:
        self._folder = folder
        self._store = store

    def begin(
        self, rollout_id: int, tasks: Sequence[Task], source_state: Mapping[str, Any]
    ) -> None:
        """Keep a step's plan; steps before the previous one are forgotten. Raises OutputError."""
        for known in self._known():
            if known < rollout_id - 1 or known == rollout_id:
                shutil.rmtree(self._rollout(known))
        plan = {
            "schema": _SCHEMA,
            "rollout_id": rollout_id,
            "source_state": dict(source_state),
            "tasks": [_task_record(task) for task in tasks],
        }
        self._store.save(self._plan(rollout_id), plan)

    def save(self, rollout_id: int, task: Task) -> None:
        """Keep one group that has ended. Raises OutputError."""
        path = self._rollout(rollout_id) / f"group_{task.index:06d}{self._store.suffix}"
        self._store.save(path, _task_record(task))

    def load(self, rollout_id: int) -> SavedRollout | None:
        """Read a step that had begun; None when it had not. Raises ConfigError."""
        path = self._plan(rollout_id)
        if not path.exists():
            return None
        plan = self._load_plan(path)
        tasks = {record["index"]: _task(record) for record in plan["tasks"]}
        done = set()
        for file in sorted(path.parent.glob(f"group_*{self._store.suffix}")):
            task = _task(self._store.load(file))
            tasks[task.index] = task
            done.add(task.index)
        return SavedRollout(
            tasks=[tasks[index] for index in sorted(tasks)],
            done=frozenset(done),
            source_state=plan["source_state"],
        )

    def source_state(self, *, before: int) -> Mapping[str, Any] | None:
        """Give the data source as it stood behind the newest step before `before`."""
        older = [known for known in self._known() if known < before]
        if not older:
            return None
        state: Mapping[str, Any] = self._load_plan(self._plan(max(older)))["source_state"]
        return state

    def _load_plan(self, path: Path) -> dict[str, Any]:
        plan: Any = self._store.load(path)
        if not isinstance(plan, dict) or plan.get("schema") != _SCHEMA:
            raise ConfigError(f"{path}: is no plan of the format {_SCHEMA}")
        return dict(plan)

    def _known(self) -> list[int]:
        found = (re.fullmatch(r"rollout_(\d+)", p.name) for p in self._folder.glob("rollout_*"))
        return sorted(
            number
            for match in found
            if match is not None and self._plan(number := int(match.group(1))).exists()
        )

    def _rollout(self, rollout_id: int) -> Path:
        return self._folder / f"rollout_{rollout_id:06d}"

    def _plan(self, rollout_id: int) -> Path:
        return self._rollout(rollout_id) / f"plan{self._store.suffix}"


def _task_record(task: Task) -> dict[str, Any]:
    return {
        "index": task.index,
        "task_type": task.config.task_type,
        "samples": [to_record(sample) for sample in task.samples],
    }


def _task(record: Mapping[str, Any]) -> Task:
    return Task(
        config=TaskConfig(task_type=record["task_type"]),
        index=record["index"],
        samples=[to_sample(sample) for sample in record["samples"]],
    )
