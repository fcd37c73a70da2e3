"""RunDir: where a run is kept, so that what has ended survives whatever happens to the process.

    run.json        what ran and how it stands (agentflow-run/1), replaced by rename
    journal.sqlite  what a killed run goes on from, where it was asked for; gone at the end
    config.yaml     the resolved configuration
    tasks.jsonl     the rows of its tasks, each once
    samples.jsonl   one ended sample a line, appended when it ends
    tokens/         one .npz of token arrays a sample
    trajectories/   one mini-swe-agent trajectory an episode, replaced after every turn
    preds.json      SWE-bench predictions of replica 0; preds.I.json those of replica I. Of an
                    evaluation's data set: preds/NAME.I.json
    summary.json    the figures, at the end
    events.jsonl    everything that happened, in order
    logs/           what the program said

Owns the directory while it is open: a lock keeps other processes out, and a directory that holds
anything already is refused untouched. A line of samples.jsonl is written after the files it names.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import fcntl
import os
import secrets
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

import orjson
import yaml

from agentflow.engine.recorded_tokens import token_archive, tokens_name
from agentflow.errors import ConfigError
from executors.data.versions import versions
from executors.runs.files import LineFile, OutputError, write_atomic, writing
from executors.runs.run_rows import SAMPLES, cut_torn_line, read_rows, read_run
from executors.runs.sample_rows import sample_row, trajectory_name

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from agentflow.config import AgentflowConfig
    from agentflow.protocols import Runner
    from agentflow.swe.sample import SWESample
    from agentflow.types import RolloutSample
    from executors.runs.summary import Summary

SCHEMA = "agentflow-run/1"
LOCK = ".lock"
"""Held by the process whose run it is."""
_RESERVE = ".reserve"
_RESERVE_BYTES = 64 * 1024
"""Given back to the disk at the end, so that a full one still takes run.json and summary.json."""
_PRETTY = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY


class RunStatus(StrEnum):
    """How a run stands; `running` without a holder of the lock means that it was killed."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@runtime_checkable
class Serializable(Protocol):
    """An agent that can give its trajectory in mini-swe-agent's format."""

    def serialize(self) -> dict[str, Any]:
        """Return the trajectory so far."""
        ...


class RunDir:
    """One run's directory; `open` it before anything is saved."""

    def __init__(self, path: Path, *, runner: Runner) -> None:
        """Nothing is touched before `open`."""
        self.path = path
        self.run_id = secrets.token_hex(6)
        """Names the run wherever its directory moves; of a run that is gone on with, its own."""
        self._runner = runner
        self._lock: int | None = None
        self._samples: LineFile | None = None
        self._run: dict[str, Any] = {}
        self._predictions: dict[str, dict[str, dict[str, Any]]] = {}
        """By the name of their file."""
        self._made: list[Path] = []

    @property
    def is_ours(self) -> bool:
        """Whether `open` came so far that run.json is this run's to write; it stays so."""
        return bool(self._run)

    # --- opening and closing ------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a path that cannot become this run's. Touches nothing. Raises ConfigError."""
        try:
            found = sorted(entry.name for entry in self.path.iterdir() if entry.name != LOCK)
        except FileNotFoundError:
            return
        except OSError as error:
            raise ConfigError(f"run.out: {self.path}: {error.strerror}") from error
        if "run.json" in found:
            raise ConfigError(
                f"run.out: {self.path} already holds a run; nothing was changed. Give another --out"
            )
        if found:
            raise ConfigError(
                f"run.out: {self.path} is not empty (it holds {found[0]!r}); give another --out"
            )

    def open(self, config: AgentflowConfig, *, argv: Sequence[str], model: str) -> None:
        """Create the directory, take its lock, and write run.json and config.yaml.

        `model` is the name under which predictions are filed. Raises ConfigError when the directory
        cannot be this run's, OutputError when the disk is full; what it made is then gone again.
        """
        self.check()
        with contextlib.ExitStack() as undo:
            undo.callback(self._undo)
            try:
                self._make_folders()
            except OSError as error:
                raise ConfigError(
                    f"run.out: {self.path} cannot be written: {error.strerror}"
                ) from error
            self._write_first_files(config, argv=argv, model=model)
            undo.pop_all()

    def take_over(self) -> None:
        """Lock the directory of a killed run, before what it left is read. Raises ConfigError."""
        try:
            self._take_lock(expect_new=False)
        except OSError as error:
            raise ConfigError(f"--resume: {self.path} cannot be gone on with: {error}") from error
        self.run_id = str(read_run(self.path).get("id", self.run_id))

    def reopen(self, *, argv: Sequence[str], unended: Collection[str] = ()) -> None:
        """Go on in a directory that was taken over, with what it keeps. Raises ConfigError.

        Rows of `unended` episodes, by key, go: they are run again.
        """
        assert self._lock is not None, "take it over first"
        try:
            for name in (SAMPLES, "events.jsonl"):
                if (self.path / name).exists():
                    cut_torn_line(self.path / name)
            self._drop_rows(unended)
            self._run = orjson.loads((self.path / "run.json").read_bytes())
            write_atomic(self.path / _RESERVE, bytes(_RESERVE_BYTES))
            self._samples = LineFile(self.path / SAMPLES)
        except (OSError, OutputError, orjson.JSONDecodeError) as error:
            self.close()
            raise ConfigError(f"--resume: {self.path} cannot be gone on with: {error}") from error
        for row in read_rows(self.path):
            file = _predictions_name(int(row["replica_index"]))
            self._predict_patch(file, row["instance_id"] or row["uid"], row["patch"])
        resumed = {"argv": list(argv), "at": self._timestamp()}
        self._run["resumed"] = [*self._run.get("resumed", ()), resumed]
        self._run |= {"status": RunStatus.RUNNING, "ended": None, "error": None, "pid": os.getpid()}
        self._write_json("run.json", self._run)

    def _drop_rows(self, unended: Collection[str]) -> None:
        rows = read_rows(self.path)
        kept = [row for row in rows if row["key"] not in unended]
        if len(kept) < len(rows):
            lines = (orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE) for row in kept)
            write_atomic(self.path / SAMPLES, b"".join(lines))

    def _make_folders(self) -> None:
        folders = (self.path, *self.path.parents)
        missing = [folder for folder in folders if not folder.exists()]
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            self._made.append(folder)
        self._take_lock()
        for name in ("tokens", "trajectories", "logs"):
            (self.path / name).mkdir()
            self._made.append(self.path / name)

    def _write_first_files(
        self, config: AgentflowConfig, *, argv: Sequence[str], model: str
    ) -> None:
        names = (_RESERVE, SAMPLES, "config.yaml", "run.json")  # the last: then it is a run
        self._made += [self.path / name for name in names]
        self._run = {
            "schema": SCHEMA,
            "id": self.run_id,
            "status": RunStatus.RUNNING,
            "argv": list(argv),
            "model": model,
            "tag": config.run.tag,
            "seed": config.run.seed,
            "started": self._timestamp(),
            "ended": None,
            "error": None,
            "pid": os.getpid(),
            "versions": versions(),
        }
        write_atomic(self.path / _RESERVE, bytes(_RESERVE_BYTES))
        self._samples = LineFile(self.path / SAMPLES)
        text = yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
        write_atomic(self.path / "config.yaml", text.encode())
        self._write_json("run.json", self._run)

    def _take_lock(self, *, expect_new: bool = True) -> None:
        """Lock the directory, and look once more whether it is new, if it is to be.

        A lock file is removed by its holder alone, so it may be gone by the time that it is ours:
        then the next one decides.
        """
        lock = self.path / LOCK
        while self._lock is None:
            held = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(held)
                raise ConfigError(f"run.out: {self.path} is in use by another run") from error
            if lock.exists() and os.path.samestat(os.fstat(held), lock.stat()):
                self._lock = held
            else:
                os.close(held)
        if expect_new:
            self.check()

    def close(self) -> None:
        """Let go of the directory. Idempotent."""
        if self._samples is not None:
            self._samples.close()
        if self._lock is not None:
            with contextlib.suppress(OSError):
                (self.path / LOCK).unlink()
            os.close(self._lock)
            self._lock = None

    def _undo(self) -> None:
        """Remove what a failed `open` made, and nothing of anybody else's."""
        inside = [path for path in self._made if path.parent == self.path]
        for path in inside:
            _remove(path)
        self.close()
        for path in reversed([path for path in self._made if path not in inside]):
            _remove(path)
        self._made.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    # --- while it runs ------------------------------------------------------------------------

    def save_trajectory(self, sample: SWESample) -> None:
        """Replace the trajectory of an episode, if its agent can tell it. Raises OutputError."""
        agent: object = sample.m.agent
        if isinstance(agent, Serializable):
            self._write_json(trajectory_name(sample.episode), agent.serialize())

    def save_sample(self, sample: RolloutSample, *, dataset: str | None = None) -> None:
        """Keep a sample that has ended, of that data set in an evaluation. Raises OutputError."""
        assert self._samples is not None, "open the run directory first"
        write_atomic(self.path / tokens_name(sample.episode.key), token_archive(sample))
        option = orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
        trajectory: str | None = trajectory_name(sample.episode)
        if not (self.path / str(trajectory)).exists():  # it never had an agent that could tell it
            trajectory = None
        row = sample_row(sample, trajectory=trajectory)
        self._samples.append(orjson.dumps(row, default=str, option=option))
        self._predict(sample, dataset)

    def _predict(self, sample: RolloutSample, dataset: str | None) -> None:
        name = str(sample.task.get("instance_id", sample.episode.uid))
        self._predict_patch(
            _predictions_name(sample.episode.replica_index, dataset), name, sample.facts.patch
        )

    def _predict_patch(self, file: str, name: str, patch: str | None) -> None:
        predictions = self._predictions.setdefault(file, {})
        predictions[name] = {"model_name_or_path": self._run["model"], "model_patch": patch or ""}

    # --- at the end ---------------------------------------------------------------------------

    def finish(self, status: RunStatus, *, summary: Summary, error: str | None = None) -> None:
        """Write summary, predictions and the final run.json. Raises OutputError."""
        self._release_reserve()
        try:
            self._write_json("summary.json", summary.to_json())
            for name, predictions in sorted((self._predictions or {"preds.json": {}}).items()):
                self._write_json(name, predictions)
        except OutputError as failure:
            self.mark(RunStatus.FAILED, error=error or str(failure))
            raise
        self.mark(status, error=error)

    def mark(self, status: RunStatus, *, error: str | None = None) -> None:
        """Replace run.json alone. Raises OutputError."""
        self._release_reserve()
        self._run |= {"status": status, "ended": self._timestamp(), "error": error}
        self._write_json("run.json", self._run)

    def _release_reserve(self) -> None:
        with contextlib.suppress(OSError):
            (self.path / _RESERVE).unlink()

    def _write_json(self, name: str, value: Mapping[str, Any]) -> None:
        with writing(self.path / name):
            (self.path / name).parent.mkdir(exist_ok=True)
        write_atomic(self.path / name, orjson.dumps(value, default=str, option=_PRETTY))

    def _timestamp(self) -> str:
        wall = dt.datetime.fromtimestamp(self._runner.wall_time(), tz=dt.UTC)
        return wall.isoformat(timespec="milliseconds")


def _predictions_name(replica: int, dataset: str | None = None) -> str:
    """Name the file of a sample's prediction: in one file each task has one."""
    if dataset is not None:
        return f"preds/{dataset}.{replica}.json"
    return f"preds.{replica}.json" if replica else "preds.json"


def _remove(path: Path) -> None:
    """Remove a file or an empty folder, if it is there and can be."""
    with contextlib.suppress(OSError):
        if path.is_dir():
            path.rmdir()
        else:
            path.unlink()
