"""The sample ledger, as events in and books out, and under any order of events."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentflow.types import Cause, EpisodeId
from executors.data.ledger import NotLeased, SampleLedger, SampleState

A, B = EpisodeId(uid="a"), EpisodeId(uid="b")


def issued(*episodes: EpisodeId) -> SampleLedger:
    """Make a ledger with these episodes queued."""
    ledger = SampleLedger()
    for episode in episodes:
        ledger.issue(episode)
    return ledger


def test_an_episode_goes_through_the_books_once() -> None:
    """Issued, leased, interrupted, leased again, ended, delivered: one column at a time."""
    ledger = issued(A)
    ledger.lease(A, "w")
    assert ledger.interrupted(A, "w")
    assert (ledger.state(A), ledger.owner(A)) == (SampleState.PARTIAL, "w")
    ledger.lease(A, "w")
    assert ledger.ended(A, "w")
    assert ledger.counts().open == 0
    ledger.deliver(A)
    assert ledger.counts().delivered == 1
    ledger.check()


def test_one_name_is_issued_once_while_it_is_in_the_books() -> None:
    """A second sample of a name is refused; after delivery the name is free for another epoch."""
    ledger = issued(A)
    with pytest.raises(ValueError, match="a#0 was issued already"):
        ledger.issue(A)
    ledger.lease(A, "w")
    ledger.ended(A, "w")
    ledger.deliver(A)
    ledger.issue(A)
    assert ledger.counts().issued == 2


def test_the_first_finisher_wins_and_the_late_result_is_counted() -> None:
    """A worker that was given up finishes first: its result counts, the second one's is late."""
    ledger = issued(A)
    ledger.lease(A, "slow")
    assert ledger.revoke("slow") == [A]
    ledger.lease(A, "second")
    assert ledger.ended(A, "slow")
    assert not ledger.ended(A, "second")
    assert (ledger.counts().late, ledger.counts().buffered) == (1, 1)
    ledger.check()


def test_a_late_result_after_delivery_is_discarded_and_counted() -> None:
    """A timed-out rollout that finishes after its replacement was delivered crashes nobody."""
    ledger = issued(A)
    ledger.lease(A, "slow")
    ledger.revoke("slow")
    ledger.lease(A, "second")
    assert ledger.ended(A, "second")
    ledger.deliver(A)
    assert not ledger.ended(A, "slow")
    assert ledger.counts().late == 1


def test_what_a_lost_worker_had_interrupted_stays_partial_without_an_owner() -> None:
    """Partial work survives its worker; somebody else may take it."""
    ledger = issued(A, B)
    for episode in (A, B):
        ledger.lease(episode, "w")
    ledger.interrupted(A, "w")
    assert ledger.revoke("w") == [B]
    assert (ledger.state(A), ledger.owner(A)) == (SampleState.PARTIAL, None)
    ledger.lease(A, "other")
    ledger.check()


def test_an_episode_of_somebody_else_cannot_come_back() -> None:
    """A return without a lease is a bug, named with episode and worker."""
    ledger = issued(A)
    with pytest.raises(NotLeased, match="a#0 is not leased to 'w'"):
        ledger.ended(A, "w")
    ledger.lease(A, "other")
    with pytest.raises(NotLeased):
        ledger.interrupted(A, "w")
    ledger.check()


def test_a_dropped_episode_is_counted_by_its_cause() -> None:
    """Dropping ends an episode; the worker that has it comes too late."""
    ledger = issued(A, B)
    ledger.lease(A, "w")
    ledger.drop(A, Cause.CANCELLED)
    ledger.drop(B, Cause.PREPROCESS_FAILED)
    assert ledger.counts().dropped == {"cancelled": 1, "preprocess_failed": 1}
    assert not ledger.ended(A, "w")
    ledger.check()


class LedgerMachine(RuleBasedStateMachine):
    """Any order of issues, leases, returns, losses and deliveries, checked after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SampleLedger()
        self.names = 0
        self.leases: set[tuple[EpisodeId, str]] = set()
        """Leases that some worker believes in."""
        self.results: dict[EpisodeId, int] = {}
        self.waiting: set[EpisodeId] = set()
        self.buffered: set[EpisodeId] = set()
        self.workers = 0

    @rule()
    def issue(self) -> None:
        """A new episode comes in."""
        episode = EpisodeId(uid=f"e{self.names}")
        self.names += 1
        self.ledger.issue(episode)
        self.waiting.add(episode)
        self.results[episode] = 0

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def lease(self, data: st.DataObject) -> None:
        """A worker takes a waiting one; given-up workers have new names."""
        episode = data.draw(st.sampled_from(sorted(self.waiting)))
        worker = f"w{self.workers + data.draw(st.integers(0, 1))}"
        self.waiting.discard(episode)
        self.ledger.lease(episode, worker)
        self.leases.add((episode, worker))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), how=st.sampled_from(["ended", "interrupted", "give_back"]))
    def come_back(self, data: st.DataObject, how: str) -> None:
        """Whoever believes in a lease returns it, one way or another."""
        episode, worker = data.draw(st.sampled_from(sorted(self.leases)))
        self.leases.discard((episode, worker))
        if getattr(self.ledger, how)(episode, worker):
            if how == "ended":
                self.results[episode] += 1
                self.waiting.discard(episode)
                self.buffered.add(episode)
            else:
                self.waiting.add(episode)

    @rule()
    def lose_a_worker(self) -> None:
        """One is given up; it still believes in its leases."""
        self.waiting |= set(self.ledger.revoke(f"w{self.workers}"))
        self.workers += 1

    @precondition(lambda self: self.buffered)
    @rule(data=st.data())
    def deliver(self, data: st.DataObject) -> None:
        """The trainer takes one."""
        episode = data.draw(st.sampled_from(sorted(self.buffered)))
        self.buffered.discard(episode)
        self.ledger.deliver(episode)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """One that waits is given up on."""
        episode = data.draw(st.sampled_from(sorted(self.waiting)))
        self.waiting.discard(episode)
        self.ledger.drop(episode, Cause.CANCELLED)

    @invariant()
    def the_books_balance(self) -> None:
        """Nothing is lost, nothing ends twice."""
        self.ledger.check()
        assert all(count <= 1 for count in self.results.values())
        counts = self.ledger.counts()
        assert counts.queued + counts.partial == len(self.waiting)
        assert counts.buffered == len(self.buffered)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLedger = LedgerMachine.TestCase
