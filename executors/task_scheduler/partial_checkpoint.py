"""PartialCheckpoint: what a rollout has so far, so that a killed one goes on and repeats nothing.

    partial/source_000007.pt                 where the data source stood behind the step's prompts
    partial/rollout_000007/plan.pt           the step's prompts
    partial/rollout_000007/group_000003.pt   one group that has ended

A group's file is written when the group ends, source and plan before its first sample starts.
Groups are kept of this step and the one before, which a trainer that runs a step behind asks for
again. Sources are kept of all steps: a trainer goes on from its own newest checkpoint, which may be
many steps old. What it had of the steps that it goes through again is forgotten.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from executors.runs.files import writing
from executors.task_scheduler.records import reading, to_record, to_sample
from executors.task_scheduler.tasks import Task, TaskConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from executors.task_scheduler.args import SchedulerArgs
    from executors.task_scheduler.stores import Store

_SCHEMA = "agentflow-partial/2"


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

    @classmethod
    def of(cls, args: SchedulerArgs, *, store: Store) -> PartialCheckpoint:
        """Keep it in the folder of `--save`. Raises ConfigError where there is none."""
        if args.save is None:
            raise ConfigError("a partial checkpoint needs --save: the folder to write into")
        return cls(Path(args.save) / "partial", store=store)

    def begin(
        self, rollout_id: int, tasks: Sequence[Task], source_state: Mapping[str, Any]
    ) -> None:
        """Keep a step's plan; only the step before it is kept beside it. Raises OutputError."""
        for number, folder in self._numbered("rollout"):
            if number != rollout_id - 1:
                with writing(folder):
                    shutil.rmtree(folder)
        for number, file in self._numbered("source"):
            if number > rollout_id:
                with writing(file):
                    file.unlink()
        self._store.save(self._source(rollout_id), dict(source_state))
        plan = {"schema": _SCHEMA, "tasks": [_task_record(task) for task in tasks]}
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
        with reading(path, advice=f"remove {path.parent}, and the step is run anew"):
            plan = self._store.load(path)
            if not isinstance(plan, dict) or plan.get("schema") != _SCHEMA:
                raise ConfigError(f"{path}: is no plan of the format {_SCHEMA}")
            tasks = {record["index"]: _task(record) for record in plan["tasks"]}
        done = set()
        for file in sorted(path.parent.glob(f"group_*{self._store.suffix}")):
            with reading(file, advice="remove it, and its group is run again"):
                task = _task(self._store.load(file))
            tasks[task.index] = task
            done.add(task.index)
        return SavedRollout(
            tasks=[tasks[index] for index in sorted(tasks)],
            done=frozenset(done),
            source_state=self._load_source(self._source(rollout_id)),
        )

    def source_state(self, *, before: int) -> Mapping[str, Any] | None:
        """Give the data source as it stood behind the newest step before `before`."""
        older = [file for number, file in self._numbered("source") if number < before]
        return self._load_source(older[-1]) if older else None

    def _load_source(self, path: Path) -> Mapping[str, Any]:
        state: Any = self._store.load(path)
        if not isinstance(state, dict):
            raise ConfigError(f"{path}: is damaged; it must hold the state of a data source")
        return state

    def _numbered(self, kind: str) -> list[tuple[int, Path]]:
        pattern = re.compile(rf"{kind}_(\d+)({re.escape(self._store.suffix)})?")
        found = ((pattern.fullmatch(p.name), p) for p in self._folder.glob(f"{kind}_*"))
        return sorted((int(match.group(1)), path) for match, path in found if match is not None)

    def _rollout(self, rollout_id: int) -> Path:
        return self._folder / f"rollout_{rollout_id:06d}"

    def _plan(self, rollout_id: int) -> Path:
        return self._rollout(rollout_id) / f"plan{self._store.suffix}"

    def _source(self, rollout_id: int) -> Path:
        return self._folder / f"source_{rollout_id:06d}{self._store.suffix}"


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
