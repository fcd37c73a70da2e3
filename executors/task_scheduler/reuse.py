"""Where a step's samples come from: rolled out now, or read from a trajectory file.

STACX_FORCE_FRESH_ROLLOUT=1   always rolled out (live DAgger, AggreVaTe, OPD)
STACX_REUSE_PER_ITER_DIR=DIR  the n-th per-iteration file of DIR
STACX_REUSE_ROLLOUT=1         always trajectory_sft_samples.pt (iterative SFT)
none of them                  rolled out at step 0, whose file all later steps reuse
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from agentflow.errors import ConfigError
from executors.runs.files import FolderLock
from executors.task_scheduler.records import reading, to_record, to_sample

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.types import RolloutSample
    from executors.task_scheduler.stores import Store

FORCE_FRESH: Final = "STACX_FORCE_FRESH_ROLLOUT"
REUSE: Final = "STACX_REUSE_ROLLOUT"
PER_ITER_DIR: Final = "STACX_REUSE_PER_ITER_DIR"
SAVE_PER_ITER: Final = "STACX_SAVE_PER_ITER_PT"

STEM: Final = "trajectory_sft_samples"
_SCHEMA: Final = "agentflow-trajectories/1"


class Origin(StrEnum):
    """How a step got its samples."""

    FRESH = "fresh"
    REUSED = "reused"
    REPLAYED = "replayed"
    """From a directory of per-iteration files."""
    AUTO_REUSED = "auto_reused"
    """Step 0's, for want of another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variables:
    """The four variables, read once a step."""

    force_fresh: bool = False
    reuse: bool = False
    per_iter_dir: str | None = None
    save_per_iter: bool = True

    @classmethod
    def read(cls, environ: Mapping[str, str]) -> Variables:
        """Read them. Raises ConfigError for what is neither on nor off, or contradicts."""
        read = cls(
            force_fresh=_switch(environ, FORCE_FRESH, default=False),
            reuse=_switch(environ, REUSE, default=False),
            per_iter_dir=environ.get(PER_ITER_DIR) or None,
            save_per_iter=_switch(environ, SAVE_PER_ITER, default=True),
        )
        if read.force_fresh and (read.reuse or read.per_iter_dir):
            other = REUSE if read.reuse else PER_ITER_DIR
            raise ConfigError(f"{FORCE_FRESH} and {other} contradict each other; unset one")
        return read


def _switch(environ: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = environ.get(name, "").strip().lower()
    if text in {"", "0", "1", "true", "false"}:
        return text in {"1", "true"} if text else default
    raise ConfigError(f"{name} is {environ[name]!r}; it must be 0 or 1")


class TrajectoryFiles:
    """The trajectory files of a run."""

    def __init__(self, folder: Path, *, store: Store) -> None:
        self._folder = folder
        self._store = store
        self.lock = FolderLock(folder)
        """To be held by who writes."""

    @property
    def latest(self) -> Path:
        """`trajectory_sft_samples.pt`."""
        return self._folder / f"{STEM}{self._store.suffix}"

    def choose(self, rollout_id: int, variables: Variables) -> tuple[Origin, Path | None]:
        """Decide where step `rollout_id` takes its samples from. Raises ConfigError."""
        if variables.force_fresh:
            return Origin.FRESH, None
        if variables.per_iter_dir is not None:
            return Origin.REPLAYED, self._replayed(Path(variables.per_iter_dir), rollout_id)
        if variables.reuse:
            if not self.latest.exists():
                raise ConfigError(f"{REUSE}=1, but there is no {self.latest}")
            return Origin.REUSED, self.latest
        if rollout_id > 0 and self.latest.exists():
            return Origin.AUTO_REUSED, self.latest
        return Origin.FRESH, None

    def _replayed(self, folder: Path, rollout_id: int) -> Path:
        pattern = re.compile(rf".*_iter_(\d+){re.escape(self._store.suffix)}")
        found = {
            int(match.group(1)): path
            for path in folder.glob("*")
            if (match := pattern.fullmatch(path.name)) is not None
        }
        sequence = [found[number] for number in sorted(found)]
        if rollout_id >= len(sequence):
            raise ConfigError(
                f"{PER_ITER_DIR}: {folder} holds {len(sequence)} per-iteration files"
                f" (…_iter_NNN{self._store.suffix}); rollout {rollout_id} needs one more"
            )
        return sequence[rollout_id]

    def save(
        self, rollout_id: int, groups: Sequence[Sequence[RolloutSample]], *, per_iter: bool
    ) -> None:
        """Write a step's samples, and its own copy where `per_iter`. Raises OutputError."""
        value = {
            "schema": _SCHEMA,
            "rollout_id": rollout_id,
            "groups": [[to_record(sample) for sample in group] for group in groups],
        }
        self._store.save(self.latest, value)
        if per_iter:
            own = self._folder / f"{STEM}_iter_{rollout_id:03d}{self._store.suffix}"
            self._store.save(own, value)

    def load(self, path: Path) -> list[list[RolloutSample]]:
        """Read a step's samples. Raises ConfigError."""
        with reading(path, advice=f"remove it, or set {FORCE_FRESH}=1"):
            value: Any = self._store.load(path)
            if not isinstance(value, dict) or value.get("schema") != _SCHEMA:
                raise ConfigError(f"{path}: is no trajectory file of the format {_SCHEMA}")
            return [[to_sample(record) for record in group] for group in value["groups"]]
