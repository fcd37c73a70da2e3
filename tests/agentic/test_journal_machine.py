"""Ledger and journal as one state machine: whatever is done, and wherever the process dies."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from world import OneLoop

from agentflow.types import Cause, Ending, EpisodeId, RolloutSample
from executors.data import journal_schema
from executors.data.coordinator import DataCoordinator, replicas
from executors.data.groups import GroupRules, StragglerRule
from executors.data.journal import Journal
from executors.data.resuming import restored

pytestmark = pytest.mark.slow


class Clock(OneLoop):
    """Time that is set by hand."""

    t = 0.0

    def now(self) -> float:
        """The time that was set."""
        return self.t


class JournalledCoordinator(RuleBasedStateMachine):
    """A coordinator whose journal is written a few changes at a time, and that may die between.

    The model knows what was issued and what the trainer has acknowledged for certain. After a crash
    everything else must be there again, once, and nothing that was acknowledged.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "journal.sqlite"
        self.loop = asyncio.new_event_loop()
        self.clock = Clock()
        self.serial = 0
        self.issued: set[str] = set()
        """Groups whose issue was committed."""
        self.acked: set[str] = set()
        """Groups whose acknowledgement was committed."""
        self.delivered: set[str] = set()
        """Groups that the trainer of this process has, or had."""
        self.ended_for_good: set[EpisodeId] = set()
        """Episodes whose result was committed."""
        self.told_acked: set[str] = set()
        self.open_process()

    def open_process(self) -> None:
        """Start a process over what the journal holds."""
        contents = journal_schema.read(self.path)
        self.journal = Journal(self.path, keep_results=True)
        self.journal.open()
        rules = GroupRules(straggler=StragglerRule.REFILL, deadline_s=5.0, retries=1)
        self.coordinator = DataCoordinator(
            runner=self.clock, rules=rules, journal=self.journal, max_attempts=99
        )
        self.leased: list[RolloutSample] = []
        self.delivered.clear()
        if contents is not None:
            for uid, group in contents.groups.items():
                if uid not in contents.acked:
                    self.coordinator.restore(restored(group))
            self.check_restored(contents)

    def check_restored(self, contents: journal_schema.Contents) -> None:
        """Nothing lost, nothing twice, nothing that was finished begun again."""
        there = {uid for uid in contents.groups if uid not in contents.acked}
        assert self.issued - self.told_acked <= there
        assert not self.acked & there
        books = self.coordinator._books
        again = set(books.queue) | set(books.partial[None])
        assert not again & self.ended_for_good
        self.coordinator.check()

    def run(self, coro: object) -> object:
        """Run a call that does not wait."""
        return self.loop.run_until_complete(asyncio.wait_for(coro, 5))  # type: ignore[arg-type]

    # --- what may happen ----------------------------------------------------------------------

    @rule(n=st.integers(1, 3))
    def issue(self, n: int) -> None:
        """The trainer wants a group."""
        uid = f"g{self.serial}"
        self.serial += 1
        self.coordinator.add(replicas(RolloutSample(episode=EpisodeId(uid=uid), task={}), n=n))

    @precondition(lambda self: self.coordinator.counts().queued + self.coordinator.counts().partial)
    @rule()
    def lease(self) -> None:
        """The worker takes a sample."""
        sample = self.run(self.coordinator.get_sample("w"))
        assert isinstance(sample, RolloutSample)
        self.leased.append(sample)

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 99), good=st.booleans())
    def end(self, *, pick: int, good: bool) -> None:
        """A sample ends, well or by a failure."""
        sample = self.leased.pop(pick % len(self.leased))
        cause = Cause.SUBMITTED if good else Cause.ENV_DIED
        sample.ending = Ending(cause=cause, phase="x")
        sample.remove_sample = not good
        sample.responses = np.zeros(1, np.int32)
        sample.response_mask = np.ones(1, np.int8)
        sample.weight_versions = np.zeros(1, np.int32)
        self.run(self.coordinator.put_data(sample, "w"))

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 99))
    def interrupt(self, pick: int) -> None:
        """A sample comes back half-done."""
        sample = self.leased.pop(pick % len(self.leased))
        sample.attempt += 1
        self.run(self.coordinator.put_partial(sample, "w"))

    @rule(seconds=st.floats(0, 6))
    def wait(self, seconds: float) -> None:
        """Time passes; stragglers are replaced."""
        self.clock.t += seconds
        self.coordinator.close_overdue()

    @rule()
    def take(self) -> None:
        """The trainer takes what is complete."""
        for group in self.coordinator.take_groups():
            uid = group[0].episode.uid
            assert uid not in self.acked
            assert uid not in self.delivered
            assert all(s.ending is not None for s in group)
            assert {s.episode for s in group if s.remove_sample is False} <= self.ended_for_good
            self.delivered.add(uid)

    @precondition(lambda self: self.delivered)
    @rule(pick=st.integers(0, 99))
    def ack(self, pick: int) -> None:
        """The trainer has used one."""
        uid = sorted(self.delivered)[pick % len(self.delivered)]
        self.delivered.remove(uid)
        self.told_acked.add(uid)
        self.journal.acked(uid, 0)

    @rule(count=st.integers(0, 12))
    def commit(self, count: int) -> None:
        """The writer gets so far."""
        queued = self.journal.take_queued()
        batch, rest = queued[:count], queued[count:]
        changes = [one for whole in batch for one in (whole, *whole.rest)]
        for write in changes:  # what the batch makes certain, before anybody is told
            if write.sql.startswith("INSERT INTO issues"):
                self.issued.add(str(write.parameters[0]))
            if "INTO acks" in write.sql:
                self.acked.add(str(write.parameters[0]))
            if "status='ended'" in write.sql:
                uid, index = write.parameters[-2:]
                self.ended_for_good.add(EpisodeId(uid=uid, replica_index=index))
        self.journal.write(batch)
        told_meanwhile = self.journal.take_queued()
        for write in [*rest, *told_meanwhile]:
            self.journal._queue.put(write)

    @rule()
    def crash(self) -> None:
        """The process dies with what was told and not written."""
        self.journal.take_queued()
        self.journal.close()
        self.open_process()

    @invariant()
    def the_books_balance(self) -> None:
        """Every sample is in one place."""
        self.coordinator.check()

    def teardown(self) -> None:
        """Crash once more, and take everything down."""
        self.crash()
        self.journal.close()
        self.loop.close()
        self.folder.cleanup()


JournalledCoordinator.TestCase.settings = settings(max_examples=40, stateful_step_count=40)
TestJournalledCoordinator = JournalledCoordinator.TestCase
