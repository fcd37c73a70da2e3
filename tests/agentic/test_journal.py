"""The journal by itself: what it keeps of an episode, and what happens when it cannot."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from world import Agent, Chars

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess, TurnModel
from agentflow.errors import ConfigError
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.types import (
    EpisodeId,
    PartialRolloutState,
    RolloutSample,
    SamplingParams,
    StepStatus,
)
from executors.data import journal_schema
from executors.data.journal import Journal, Write
from executors.data.journal_schema import revive
from executors.runs.files import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPISODE = EpisodeId(uid="a")


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """Give a journal whose writer is the test."""
    made = Journal(tmp_path / "journal.sqlite", keep_results=True)
    made.open()
    made.issued([RolloutSample(episode=EPISODE, task={})])
    yield made
    made.close()


def sample(turns: int = 0) -> SWESample:
    """Make an episode after so many turns of three tokens each."""
    task = {"instance_id": "a", "problem_statement": "p"}
    made = SWESample(episode=EPISODE, m=SWEMeta(data=SWEData(task=task)))
    access = EngineAccess(engine=None, renderer=Chars(), rids=RidFactory())  # type: ignore[arg-type]
    made.model = TurnModel(
        episode=EPISODE, record=made.record, sampling=SamplingParams(), access=access
    )
    made.m.agent = Agent(made)
    for _ in range(turns):
        open_turn(made)
        made.model._turn_start = None
    return made


def open_turn(made: SWESample) -> None:
    """Let a turn begin, and bring three tokens."""
    assert made.model is not None
    made.record.extend_rendered([9])
    made.model._turn_start = len(made.record)
    made.model.turns += 1
    made.record.append([1, 2, 3], [-1.0, -2.0, -3.0], 7)


def read_back(journal: Journal) -> SWESample | None:
    """Read what another process would find."""
    journal.write(journal.take_queued())
    contents = journal_schema.read(journal._path)
    assert contents is not None
    (member,) = contents.groups["a"]
    return revive(member)


def look(journal: Journal) -> None:
    """Look at running generations, as the writer does now and then."""
    for write in journal._token_writes():
        journal._queue.put(write)


def test_what_is_issued_together_is_kept_together(journal: Journal) -> None:
    """The writer may be killed after any change that it takes from the queue."""
    journal.issued([RolloutSample(episode=EpisodeId(uid=uid), task={}) for uid in "bc"])
    _, together = journal.take_queued()  # the first is the fixture's
    journal.write([together])
    contents = journal_schema.read(journal._path)
    assert contents is not None
    assert sorted(contents.groups) == ["b", "c"]


def test_what_belongs_together_is_one_transaction(journal: Journal) -> None:
    """A kill between two changes of one fact would leave half of it."""
    one = RolloutSample(episode=EPISODE, task={})
    journal.write(journal.take_queued())
    journal.retried(one)
    journal.ended(one, lambda: None)
    journal.group_dropped("a")
    assert len(journal.take_queued()) == 3


def test_a_journal_that_was_damaged_is_told(journal: Journal) -> None:
    """Whatever part of it: the error names the file."""
    journal.write([*journal.take_queued(), Write("UPDATE issues SET samples=?", (b"\x80\x05K",))])
    with pytest.raises(ConfigError, match="is no journal that can be read"):
        journal_schema.read(journal._path)


def test_a_journal_whose_pages_do_not_fit_together_is_told(journal: Journal) -> None:
    """It could be read, and would give less than was issued."""
    journal.write(journal.take_queued())
    journal.close()
    with closing(sqlite3.connect(journal._path)) as database:
        sql = "SELECT rootpage FROM sqlite_master WHERE name='sqlite_autoindex_samples_1'"
        (page,) = database.execute(sql).fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    empty_leaf = bytes([10, 0, 0, 0, 0]) + size.to_bytes(2, "big") + bytes(1)
    with journal._path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(empty_leaf)
    with pytest.raises(ConfigError, match="is damaged: row 1 missing from index"):
        journal_schema.read(journal._path)


def test_an_open_turn_comes_back_with_its_tokens(journal: Journal) -> None:
    """The state is that of the last half-step; the turn begun since is primed with its tokens."""
    one = sample(turns=1)
    journal.keep(one)
    journal.generating(one)
    open_turn(one)
    look(journal)
    found = read_back(journal)
    assert found is not None
    assert found.model is not None
    assert (found.model.turns, found.record.generated, found.model.lost_tokens) == (1, 3, 3)
    assert found.model._primed == ([1, 2, 3], [-1.0, -2.0, -3.0], [7, 7, 7])


def test_a_turn_that_was_interrupted_goes_on_with_what_came_later(journal: Journal) -> None:
    """Kept with one part of a turn, looked at when there was more: all of it is there."""
    one = sample()
    open_turn(one)
    journal.keep(one)
    journal.generating(one)
    one.record.append([4], [-4.0], 8)
    look(journal)
    found = read_back(journal)
    assert found is not None
    assert found.record.ids.tolist() == [9, 1, 2, 3, 4]
    assert found.record.weight_versions.tolist() == [7, 7, 7, 8]


def test_tokens_of_a_turn_that_is_over_or_of_another_attempt_are_left_out(
    journal: Journal,
) -> None:
    """A look that was late changes nothing; nor do tokens of an attempt that was thrown away."""
    one = sample()
    journal.generating(one)
    open_turn(one)
    look(journal)
    assert one.model is not None
    one.model._turn_start = None
    journal.keep(one)
    found = read_back(journal)
    assert found is not None
    assert found.model is not None
    assert (found.record.generated, found.model.lost_tokens) == (3, 0)
    anew = sample()
    anew.attempt = 1
    journal.keep(anew)
    found = read_back(journal)
    assert found is not None
    assert found.model is not None
    assert found.model.lost_tokens == 0


def test_a_command_that_was_due_is_known_to_have_been(journal: Journal) -> None:
    """Its episode comes back as one that nobody goes on with, lease and all."""
    one = sample(turns=1)
    one.m.lease = "lease"
    journal.keep(one)
    one.m.rollout.state = PartialRolloutState(status=StepStatus.NEEDS_ENV_STEP, pending_action="x")
    journal.keep(one)
    found = read_back(journal)
    assert found is not None
    assert found.m.rollout.state is not None
    assert (found.m.rollout.state.status, found.m.lease) == (StepStatus.NEEDS_ENV_STEP, "lease")
    one.m.rollout.state = PartialRolloutState(status=StepStatus.NEEDS_GENERATION)
    journal.keep(one)
    found = read_back(journal)
    assert found is not None
    assert found.m.rollout.state == one.m.rollout.state


class Unpicklable(Agent):
    """An agent with a lock in it."""

    def __init__(self, one: SWESample) -> None:
        super().__init__(one)
        self.lock = threading.Lock()


def test_what_cannot_be_kept_is_told_once_and_starts_anew(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    """A plug-in that does not pickle costs its episodes the resume, and nothing else."""
    one = sample()
    journal.keep(one)
    one.m.agent = Unpicklable(one)
    for _ in range(2):
        journal.keep(one)
    assert read_back(journal) is None
    assert caplog.text.count("start anew after a crash") == 1


async def test_a_full_disk_is_heard_by_everybody(journal: Journal) -> None:
    """No command begins that nobody would know of, and no sample counts that is not written."""
    heard: list[Any] = []
    journal.on_failure = heard.append
    assert journal._database is not None
    journal._database.execute("PRAGMA max_page_count = 1")
    counted: list[str] = []
    journal.start()
    big = RolloutSample(episode=EPISODE, task={}, metadata={"x": b"0" * 10**6})
    journal.ended(big, lambda: counted.append("counted"))
    with pytest.raises(
        OutputError, match=r"cannot write .*journal\.sqlite: database or disk is full"
    ):
        await journal.kept()
    assert heard == [journal.failure]
    assert not counted
