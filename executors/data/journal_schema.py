"""The tables of a journal, and reading one back."""

from __future__ import annotations

import logging
import pickle
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.errors import ConfigError
from agentflow.types import (
    Cause,
    Ending,
    EpisodeId,
    PartialRolloutState,
    RolloutSample,
    StepStatus,
)

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.swe.sample import SWESample

SCHEMA = "agentflow-journal/1"
FILE = "journal.sqlite"
"""In the run directory."""
RUN, TRAINER = "run", "trainer"

_TABLES = """
BEGIN;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS issues (
    number INTEGER PRIMARY KEY, uid TEXT NOT NULL, samples BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS samples (
    uid TEXT, replica INTEGER, status TEXT NOT NULL DEFAULT 'open',
    attempt INTEGER, restarted INTEGER, stale INTEGER, cause TEXT, message TEXT, result BLOB,
    PRIMARY KEY (uid, replica));
CREATE TABLE IF NOT EXISTS states (
    uid TEXT, replica INTEGER, state BLOB NOT NULL, due INTEGER, PRIMARY KEY (uid, replica));
CREATE TABLE IF NOT EXISTS turns (
    uid TEXT, replica INTEGER, attempt INTEGER, turn INTEGER,
    ids BLOB, logprobs BLOB, versions BLOB,
    PRIMARY KEY (uid, replica));
CREATE TABLE IF NOT EXISTS acks (uid TEXT PRIMARY KEY, checkpoint INTEGER) WITHOUT ROWID;
INSERT OR IGNORE INTO meta VALUES ('schema', 'agentflow-journal/1');
COMMIT;
"""

_UNREADABLE = (
    pickle.UnpicklingError,
    AttributeError,
    ImportError,
    EOFError,
    LookupError,
    MemoryError,
    OverflowError,
    TypeError,
    ValueError,
)
"""What unpickling damaged bytes raises, or those of another program."""

logger = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Member:
    """One sample as the journal knows it."""

    sample: RolloutSample
    """As it was issued, with how often it was begun; the result where it has ended with one."""
    ended: bool = False
    dropped: Ending | None = None
    state: bytes | None = None
    """Pickled SWESample of an episode under way."""
    due: bool = False
    """Whether a command may have run since."""
    turn: tuple[int, int, bytes, bytes, bytes] | None = None
    """Attempt, number, ids, log-probabilities and versions of the turn that was open."""


@dataclass(slots=True, kw_only=True)
class Contents:
    """What a journal holds: groups by uid, in the order of issue."""

    groups: dict[str, list[Member]] = field(default_factory=dict)
    acked: dict[str, int] = field(default_factory=dict)
    """Names of groups that were used, and how many checkpoints there were before; what they were
    may be forgotten."""
    holder: str | None = None
    """`RUN` or `TRAINER`: who can go on with it; None where it was not written down."""

    def unended(self) -> set[str]:
        """Give the keys of episodes that have not ended."""
        members = (m for group in self.groups.values() for m in group)
        return {m.sample.episode.key for m in members if not m.ended and m.dropped is None}


def create(path: Path, *, for_trainer: bool) -> sqlite3.Connection:
    """Make the file or open it, for one writer. Raises sqlite3.Error."""
    database = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode=WAL")
    database.execute("PRAGMA synchronous=NORMAL")
    database.executescript(_TABLES)
    holder = TRAINER if for_trainer else RUN
    database.execute("INSERT OR IGNORE INTO meta VALUES ('holder', ?)", (holder,))
    return database


def read(path: Path) -> Contents | None:
    """Read a journal; its writer may have been killed. Raises ConfigError.

    None when it has no tables, or is not there: the writer had not made them yet.
    """
    if not path.exists():
        return None
    try:
        database = sqlite3.connect(path, isolation_level=None)
        try:
            return _read(database, path)
        finally:
            database.close()
    except (sqlite3.Error, *_UNREADABLE) as error:
        raise ConfigError(f"{path}: is no journal that can be read: {error}") from error


def _read(database: sqlite3.Connection, path: Path) -> Contents | None:
    if database.execute("SELECT 1 FROM sqlite_master").fetchone() is None:
        return None
    (schema,) = database.execute("SELECT value FROM meta WHERE key='schema'").fetchone() or ("?",)
    if schema != SCHEMA:
        raise ConfigError(f"{path}: its schema is {schema!r}; this version reads {SCHEMA!r}")
    (found,) = database.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise ConfigError(f"{path}: is damaged: {found.splitlines()[-1]}; put back a copy of it")
    issued = {}
    for (blob,) in database.execute("SELECT samples FROM issues ORDER BY number"):
        for fields in pickle.loads(blob):  # noqa: S301  # the run's own file
            issued[fields["episode"]] = fields
    rows = {
        EpisodeId(uid=uid, replica_index=replica): rest
        for uid, replica, *rest in database.execute(
            "SELECT uid, replica, status, attempt, restarted, stale, cause, message, result"
            " FROM samples"
        )
    }
    states = _by_episode(database, "SELECT uid, replica, state, due FROM states")
    turns = _by_episode(
        database, "SELECT uid, replica, attempt, turn, ids, logprobs, versions FROM turns"
    )
    contents = Contents(acked=dict(database.execute("SELECT uid, checkpoint FROM acks")))
    (contents.holder,) = database.execute(
        "SELECT value FROM meta WHERE key='holder'"
    ).fetchone() or (None,)
    for episode, fields in issued.items():
        if episode in rows:
            member = _member(fields, rows[episode])
            member.state, member.due = states.get(episode, (None, False))
            member.turn = turns.get(episode)
            contents.groups.setdefault(episode.uid, []).append(member)
    return contents


def _by_episode(database: sqlite3.Connection, sql: str) -> dict[EpisodeId, Any]:
    return {
        EpisodeId(uid=uid, replica_index=replica): tuple(rest)
        for uid, replica, *rest in database.execute(sql)
    }


def _member(fields: dict[str, Any], row: list[Any]) -> Member:
    status, attempt, restarted, stale, cause, message, result = row
    sample = RolloutSample(
        **fields, attempt=attempt, restarted_tokens=restarted, stale_tokens=stale
    )
    if status == "ended":
        done = pickle.loads(result) if result is not None else sample  # noqa: S301  # as above
        return Member(sample=done, ended=True)
    if status == "dropped":
        ending = Ending(cause=Cause(cause), phase="group", message=message)
        return Member(sample=sample, dropped=ending)
    return Member(sample=sample)


def revive(member: Member) -> SWESample | None:
    """Make the interrupted episode of a member, with the tokens of the turn that was open.

    None where there is none, or it cannot be unpickled here: then it starts anew. The flow's
    plug-ins must have been imported before.
    """
    if member.state is None:
        return None
    try:
        sample: SWESample = pickle.loads(member.state)  # noqa: S301  # the run's own file
    except _UNREADABLE as error:
        logger.warning("%s starts anew: %s", member.sample.episode, error)
        return None
    if member.due:  # the flow will not go on from it, but let its environment go
        sample.m.rollout.state = PartialRolloutState(status=StepStatus.NEEDS_ENV_STEP)
    elif member.turn is not None and sample.model is not None:
        attempt, turn, ids, logprobs, versions = member.turn
        if attempt == sample.attempt:
            sample.model.prime(
                turn,
                np.frombuffer(ids, np.int32).tolist(),
                np.frombuffer(logprobs, np.float32).tolist(),
                np.frombuffer(versions, np.int32).tolist(),
            )
    return sample
