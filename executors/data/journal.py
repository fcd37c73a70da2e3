"""Journal: what a run needs to go on after its process was killed, in one SQLite file.

    coordinator ─ issued, retried, ended, dropped, acked ─┐
    flow ──────── keep, generating, kept ─────────────────┴▶ queue ▶ writer thread ▶ commit ▶ told

Owns the file and the thread that alone writes it. Whoever tells it something only appends to a
queue; everything queued meanwhile is one transaction, in the order in which it was told, so that a
crash leaves a state that the run was in. Two things wait for a commit: a command, until it is known
that it was due (`kept`), and a group, until its last sample is (`ended`). A killed process loses
nothing that was committed; samples and acknowledgements survive the machine as well.

The file holds pickles of the run's own making: read one only where you would run its program.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import queue
import sqlite3
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.types import StepStatus
from executors.data.journal_schema import create
from executors.data.observers import BookObserver
from executors.runs.files import OutputError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from agentflow.swe.sample import SWESample
    from agentflow.types import Ending, EpisodeId, RolloutSample

POLL_S = 0.5
"""Between two looks at the tokens of running generations: what a kill may cost of them."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Write:
    """One change of the file; `then` is called, on the writer's thread, when it is committed."""

    sql: str = ""
    parameters: tuple[Any, ...] = ()
    then: Callable[[], None] | None = None
    durable: bool = False
    """Whether it must survive the machine, not only the process."""
    rest: tuple[Write, ...] = ()
    """More changes of the same transaction, whatever is queued around it."""


class Journal(BookObserver):
    """The journal of one run. `open` it, `start` the writer, `close` it."""

    def __init__(
        self, path: Path, *, keep_results: bool, now: Callable[[], float] = lambda: 0.0
    ) -> None:
        """With `keep_results` ended samples are kept until they are acknowledged.

        `now` gives seconds, for looking at running generations now and then.
        """
        self._path = path
        self._keep_results = keep_results
        self._now = now
        self._looked = now()
        self.on_failure: Callable[[BaseException], None] = _ignored
        """Hears, on the writer's thread, that nothing can be written any more."""
        self._queue: queue.SimpleQueue[Write | None] = queue.SimpleQueue()
        self._database: sqlite3.Connection | None = None
        self._thread: threading.Thread | None = None
        self._generating: dict[EpisodeId, SWESample] = {}
        self._seen: dict[EpisodeId, int] = {}
        self._unkept: set[type] = set()
        self.failure: OutputError | None = None
        self.written = 0
        """Changes committed."""
        self.commits = 0

    @property
    def place(self) -> str:
        """Its file, which is gone when nobody can resume."""
        return os.path.abspath(self._path)  # noqa: PTH100  # links stay as they are

    # --- its life -----------------------------------------------------------------------------

    def open(self) -> None:
        """Make the file, or open one that is there. Raises OutputError."""
        try:
            self._database = create(self._path, for_trainer=self._keep_results)
        except sqlite3.Error as error:
            raise OutputError(f"cannot write {self._path}: {error}") from error

    def start(self) -> None:
        """Start writing."""
        self._thread = threading.Thread(target=self._write_all, name="journal", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write what was told and let go of the file. Idempotent."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def remove(self) -> None:
        """Close it and remove the file: the run is over, and needs it no more."""
        self.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                self._path.with_name(self._path.name + suffix).unlink()

    # --- what the books tell ------------------------------------------------------------------

    def issued(self, samples: Sequence[RolloutSample]) -> None:
        """Keep what the trainer wants: all of it or, after a crash, none."""
        groups: dict[str, list[RolloutSample]] = {}
        for sample in samples:
            groups.setdefault(sample.episode.uid, []).append(sample)
        writes = []
        for uid, members in groups.items():
            blob = pickle.dumps([_as_issued(s) for s in members], pickle.HIGHEST_PROTOCOL)
            writes.append(Write("INSERT INTO issues (uid, samples) VALUES (?,?)", (uid, blob)))
            sql = "INSERT INTO samples (uid, replica, attempt, restarted, stale) VALUES (?,?,?,?,?)"
            writes += [Write(sql, (*_name(s.episode), *_begun(s))) for s in members]
        self._queue.put(Write(rest=tuple(writes)))

    def retried(self, sample: RolloutSample) -> None:
        """Forget how far an episode was: it starts anew."""
        self._queue.put(Write(rest=(_begun_again(sample), *self._forget_state(sample.episode))))

    def interrupted(self, sample: RolloutSample) -> None:
        """Keep how often an episode was begun."""
        self._queue.put(_begun_again(sample))

    def ended(self, sample: RolloutSample, then: Callable[[], None]) -> None:
        """Keep a sample that has ended; `then` is called when that is certain."""
        result = pickle.dumps(sample, pickle.HIGHEST_PROTOCOL) if self._keep_results else None
        sql = "UPDATE samples SET status='ended', result=? WHERE uid=? AND replica=?"
        forget = self._forget_state(sample.episode)
        self._queue.put(
            Write(sql, (result, *_name(sample.episode)), then, durable=True, rest=forget)
        )

    def dropped(self, sample: RolloutSample, ending: Ending) -> None:
        """Keep that a stand-in takes its place."""
        sql = (
            "UPDATE samples SET status='dropped', cause=?, message=?, result=NULL"
            " WHERE uid=? AND replica=?"
        )
        parameters = (str(ending.cause), ending.message, *_name(sample.episode))
        self._queue.put(Write(sql, parameters, rest=self._forget_state(sample.episode)))

    def replaced(self, sample: RolloutSample) -> None:
        """Forget a member that another one stands for."""
        self._put("DELETE FROM samples WHERE uid=? AND replica=?", *_name(sample.episode))

    def group_dropped(self, uid: str) -> None:
        """Forget a group that nobody waits for any more."""
        issue, samples = (
            Write(f"DELETE FROM {table} WHERE uid=?", (uid,))  # noqa: S608  # our own names
            for table in ("issues", "samples")
        )
        self._queue.put(Write(rest=(issue, samples)))

    def acked(self, uid: str, checkpoint: int) -> None:
        """Keep that the trainer has used a group, after so many checkpoints."""
        sql = "INSERT OR REPLACE INTO acks (uid, checkpoint) VALUES (?,?)"
        self._queue.put(Write(sql, (uid, checkpoint), durable=True))

    def forget_acked(self, checkpoint: int) -> None:
        """Forget what groups were that were used before a checkpoint; that they were stays."""
        for table in ("issues", "samples"):
            self._put(
                f"DELETE FROM {table} WHERE uid IN"  # noqa: S608  # our own names
                " (SELECT uid FROM acks WHERE checkpoint<?)",
                checkpoint,
            )

    def unacked(self, uid: str) -> None:
        """Take an acknowledgement back: the trainer went back to an earlier checkpoint."""
        self._put("DELETE FROM acks WHERE uid=?", uid)

    # --- what the flow tells (`Keeper`) -------------------------------------------------------

    def keep(self, sample: SWESample) -> None:
        """Take an episode between two half-steps.

        Before a command that it is due is all there is to tell: nobody goes on from there.
        """
        episode, state = sample.episode, sample.m.rollout.state
        self._generating.pop(episode, None)
        if state is not None and state.status is StepStatus.NEEDS_ENV_STEP:
            self._put("UPDATE states SET due=1 WHERE uid=? AND replica=?", *_name(episode))
            return
        blob = self._pickled(sample)
        if blob is None:
            self._queue.put(Write(rest=self._forget_state(episode)))
            return
        self._put("INSERT OR REPLACE INTO states VALUES (?,?,?,0)", *_name(episode), blob)

    def generating(self, sample: SWESample) -> None:
        """Look at its tokens now and then, on the writer's thread."""
        self._generating[sample.episode] = sample

    async def kept(self) -> None:
        """Return when all that was told so far is committed. Raises OutputError."""
        if self.failure is not None:
            raise self.failure
        loop = asyncio.get_running_loop()
        committed = loop.create_future()
        self._queue.put(Write(then=partial(_tell, loop, committed)))
        await committed
        if self.failure is not None:
            raise self.failure

    # --- inside -------------------------------------------------------------------------------

    def _put(self, sql: str, *parameters: Any) -> None:
        self._queue.put(Write(sql, parameters))

    def _forget_state(self, episode: EpisodeId) -> tuple[Write, ...]:
        """Look at it no more; returns the writes that forget how far it was."""
        self._generating.pop(episode, None)
        self._seen.pop(episode, None)
        return tuple(
            Write(f"DELETE FROM {table} WHERE uid=? AND replica=?", _name(episode))  # noqa: S608  # our own names
            for table in ("states", "turns")
        )

    def _pickled(self, sample: SWESample) -> bytes | None:
        """Pickle an episode; None where a plug-in of the user's cannot be."""
        try:
            return pickle.dumps(sample, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            kind = type(sample.m.agent)
            if kind not in self._unkept:
                self._unkept.add(kind)
                logger.warning("episodes of %s start anew after a crash: %s", kind, error)
            return None

    def _write_all(self) -> None:
        """Write until told to end; what is queued while a commit lasts is the next one."""
        going, ended_well = True, False
        try:
            while going:
                batch = self._next_batch()
                going = None not in batch
                self.write([write for write in batch if write is not None])
            ended_well = True
        finally:
            if not ended_well:
                self.on_failure(RuntimeError("a bug ended the journal's writer; see stderr"))

    def _next_batch(self) -> list[Write | None]:
        batch: list[Write | None] = []
        with suppress(queue.Empty):
            batch.append(self._queue.get(timeout=POLL_S if self._generating else None))
            while True:
                batch.append(self._queue.get_nowait())
        if self._now() - self._looked >= POLL_S:
            self._looked = self._now()
            batch += self._token_writes()
        return batch

    def take_queued(self) -> list[Write]:
        """Take what was told and is not written yet, in order, where no writer was started."""
        writes = []
        while not self._queue.empty():
            write = self._queue.get()
            if write is not None:
                writes.append(write)
        return writes

    def write(self, batch: Sequence[Write]) -> None:
        """Write a batch in one transaction, then tell who waits for it."""
        if self.failure is None:
            try:
                self._commit(batch)
            except sqlite3.Error as error:
                self.failure = OutputError(f"cannot write {self._path}: {error}")
                self.on_failure(self.failure)
        for write in batch:
            if write.then is not None and (self.failure is None or not write.sql):
                write.then()

    def _commit(self, batch: Sequence[Write]) -> None:
        database = self._database
        assert database is not None, "open the journal first"
        durable = any(write.durable for write in batch)
        database.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        with database:
            database.execute("BEGIN")
            for write in (one for whole in batch for one in (whole, *whole.rest)):
                if write.sql:
                    database.execute(write.sql, write.parameters)
                    self.written += 1
        self.commits += 1

    def _token_writes(self) -> list[Write]:
        """Make the writes of tokens that running generations brought since the last look."""
        writes = []
        for episode, sample in list(self._generating.items()):
            row = _open_turn(sample)
            if row is not None and self._seen.get(episode) != row[0]:
                self._seen[episode] = row[0]
                sql = "INSERT OR REPLACE INTO turns VALUES (?,?,?,?,?,?,?)"
                writes.append(Write(sql, (*_name(episode), sample.attempt, *row[1:])))
        return writes


def _open_turn(sample: SWESample) -> tuple[int, int, bytes, bytes, bytes] | None:
    """Read the tokens of a turn under way, from another thread than the one that appends."""
    model, record = sample.model, sample.record
    start = model.turn_start if model is not None else None
    if model is None or start is None:
        return None
    length = len(record)  # first: what lies before it does not change any more
    turn = model.turns
    if length <= start:
        return None
    ids, logprobs, versions = record.slice(start, length)
    return length, turn, _bytes(ids), _bytes(logprobs), _bytes(versions)


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _name(episode: EpisodeId) -> tuple[str, int]:
    return episode.uid, episode.replica_index


def _begun_again(sample: RolloutSample) -> Write:
    sql = "UPDATE samples SET attempt=?, restarted=?, stale=? WHERE uid=? AND replica=?"
    return Write(sql, (*_begun(sample), *_name(sample.episode)))


def _begun(sample: RolloutSample) -> tuple[int, int, int]:
    return sample.attempt, sample.restarted_tokens, sample.stale_tokens


def _as_issued(sample: RolloutSample) -> dict[str, Any]:
    """Give the fields that the trainer filled in."""
    return {
        "episode": sample.episode,
        "task": sample.task,
        "validate": sample.validate,
        "sampling": sample.sampling,
        "raw_prompt": sample.raw_prompt,
        "raw_prompt_ids": sample.raw_prompt_ids,
        "metadata": sample.metadata,
    }


def _ignored(_failure: BaseException) -> None:
    """Nobody listens yet."""


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(_set, future)


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
