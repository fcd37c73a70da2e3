"""RunLook: a run seen by its files alone: while it runs, when it has ended, or was killed.

Reads run.json, events.jsonl and queues.json, and who holds the directory's lock; changes nothing,
takes no lock, and asks no process.
"""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from agentflow.errors import ConfigError
from agentflow.observe.doing import Doing
from agentflow.observe.records import EventFile
from agentflow.observe.run_state import RunState
from executors.runs.run_dir import LOCK, RunStatus
from executors.runs.run_rows import read_run

if TYPE_CHECKING:
    from collections.abc import Iterable

    from agentflow.observe.run_state import Progress
    from agentflow.types import EpisodeId

RUNS = Path("runs")
"""Where runs are looked for when none is named."""

_LOCKS = Path("/proc/locks")


class Standing(StrEnum):
    """How a run stands."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    KILLED = "killed"
    """It says that it runs, and nobody holds its directory."""


class RunLook:
    """One run; every `refresh` looks again."""

    def __init__(self, folder: Path) -> None:
        """Look for the first time. Raises ConfigError when `folder` holds no run."""
        self.folder = folder
        self.state = RunState()
        self.run: dict[str, Any] = {}
        self.standing = Standing.RUNNING
        self.now = 0.0
        """Seconds since the epoch; of a run that is over, when it ended."""
        self._file = EventFile(folder / "events.jsonl")
        self.refresh()

    def refresh(self) -> None:
        """Look again. Raises ConfigError."""
        self.standing = self._standing()
        try:
            self.state.fold(self._file.new())
        except OSError as error:
            raise ConfigError(f"{self.folder}/events.jsonl: {error.strerror}") from error
        running = self.standing is Standing.RUNNING
        self.now = max(time.time(), self.state.last) if running else self.state.last

    @property
    def torn(self) -> int:
        """Lines of events.jsonl that are none: a killed process may leave half of one."""
        return self._file.torn

    def open_episodes(self) -> list[Progress]:
        """Those that have not ended, who does the same for longest first."""
        found = [p for p in self.state.episodes.values() if p.doing is not Doing.ENDED]
        return sorted(found, key=lambda progress: progress.since)

    def named(self, name: str) -> list[Progress]:
        """Give the episode `uid#replica_index`, or all of the group `uid`. Raises ConfigError."""
        episodes = self.state.episodes
        found = [p for e, p in episodes.items() if name in {e.uid, str(e)}]
        if not found:
            raise ConfigError(f"{name!r} is no episode of {self.folder}{_like(name, episodes)}")
        return found

    def queues(self) -> dict[str, Any]:
        """What queues.json says: `wall`, `queues` by stage, and what `environments` wait for.

        Empty where there is none.
        """
        try:
            found: dict[str, Any] = orjson.loads((self.folder / "queues.json").read_bytes())
        except FileNotFoundError:
            return {}
        except orjson.JSONDecodeError as error:
            raise ConfigError(f"{self.folder}/queues.json: is not JSON: {error}") from error
        return found

    def _standing(self) -> Standing:
        self.run = read_run(self.folder)
        if self.run["status"] == RunStatus.RUNNING and not _is_held(
            self.folder / LOCK, self.run.get("pid", 0)
        ):
            self.run = read_run(self.folder)  # it may have ended between the two looks
            if self.run["status"] == RunStatus.RUNNING:
                return Standing.KILLED
        return Standing(self.run["status"])


def find_run(folder: Path | None) -> Path:
    """Give `folder`, or the run under `runs/` that was started last. Raises ConfigError."""
    if folder is not None:
        return folder
    found = [path.parent for depth in ("*", "*/*") for path in RUNS.glob(f"{depth}/run.json")]
    if not found:
        raise ConfigError(f"{RUNS}/ holds no run; name the run's directory")
    return max(found, key=lambda run: str(read_run(run).get("started", "")))


def _is_held(lock: Path, pid: int) -> bool:
    """Whether a process holds `lock`, by the kernel's list: trying to take it would disturb.

    By inode, or by process where a file system shows another inode than it locks.
    """
    try:
        inode = str(lock.stat().st_ino)
        held = _LOCKS.read_text().splitlines()
    except OSError:
        return False
    flocks = [line.split() for line in held if " FLOCK " in line and "->" not in line]
    return any(of[4] == str(pid) or of[5].rpartition(":")[2] == inode for of in flocks)


def _like(name: str, episodes: Iterable[EpisodeId]) -> str:
    from agentflow.registry import did_you_mean  # noqa: PLC0415  # only for this message

    known = sorted(episodes, key=str)
    example = f"; its episodes are named as {str(known[0])!r} is" if known else "; it issued none"
    return did_you_mean(name, sorted({episode.uid for episode in known})) or example
