"""TaskFile: the task rows of a run, each once, in its directory: what a later judge needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentflow.errors import ConfigError
from executors.data.observers import BookObserver
from executors.runs.files import LineFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from agentflow.types import RolloutSample

TASKS = "tasks.jsonl"


class TaskFile(BookObserver):
    """Writes a task down when its first sample is issued."""

    def __init__(self, run_dir: Path) -> None:
        """Nothing is opened before `open`."""
        self._path = run_dir / TASKS
        self._known: set[str] = set()
        self._file: LineFile | None = None

    def open(self) -> None:
        """Begin, or go on with what a killed process wrote. Raises OutputError."""
        self._known = {str(row["instance_id"]) for row in read_tasks(self._path.parent)}
        self._file = LineFile(self._path)

    def close(self) -> None:
        """Let go of the file. Idempotent."""
        if self._file is not None:
            self._file.close()

    def issued(self, samples: Sequence[RolloutSample]) -> None:
        """Write those that are new."""
        self.add(sample.task for sample in samples)

    def add(self, tasks: Iterable[Mapping[str, Any]]) -> None:
        """Write those that are new. Raises OutputError."""
        for task in tasks:
            name = str(task.get("instance_id"))
            if name not in self._known and self._file is not None:
                self._known.add(name)
                line = orjson.dumps(dict(task), default=str, option=orjson.OPT_APPEND_NEWLINE)
                self._file.append(line)


def read_tasks(run_dir: Path) -> list[dict[str, Any]]:
    """Read a run's task rows; none where there is no file. Raises ConfigError."""
    path = run_dir / TASKS
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
        return [orjson.loads(line) for line in lines]
    except FileNotFoundError:
        return []
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
