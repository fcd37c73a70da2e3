"""ActionScheduler as a state machine: whatever the order of events, its invariants hold."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentflow.scheduling import (
    LIVE,
    AbortReason,
    ActionScheduler,
    Event,
    Limits,
    Stage,
    WorkItem,
)
from agentflow.swe.kv_housing import KVHousing
from agentflow.types import EpisodeId
from priority.policies import Fcfs, FcfsPreempt, LongestPredictedFirst, Priority
from priority.residency import Residency

if TYPE_CHECKING:
    from priority.policies import Standing


class Marked:
    """High for every third arrival, so that classes mix at random."""

    preempts = True

    def classify(self, standing: Standing) -> Priority:
        """High for multiples of three, ranked by prediction."""
        return Priority(high=standing.order % 3 == 0, rank=standing.predicted or 0.0)


ENDS = {
    Stage.STARTING: [Event.STARTED, Event.FAILED],
    Stage.ACTING: [Event.NEEDS_GENERATION, Event.TERMINATED, Event.FAILED],
    Stage.FINALIZING: [Event.FINALIZED, Event.REWARDED, Event.INTERRUPTED, Event.FAILED],
    Stage.REWARDING: [Event.REWARDED, Event.FAILED],
    Stage.GENERATING: [
        Event.NEEDS_ENV_STEP,
        Event.NEEDS_GENERATION,
        Event.TERMINATED,
        Event.FAILED,
    ],
}


class Machine(RuleBasedStateMachine):
    """Plays the worker: carries commands out in any order, and reports any allowed end."""

    @initialize(
        generations=st.integers(1, 4),
        live=st.integers(1, 8),
        policy=st.sampled_from([Fcfs(), FcfsPreempt(window=3), Marked(), LongestPredictedFirst()]),
        age=st.sampled_from([3.0, float("inf")]),
        together=st.integers(1, 3),
        kv_tokens=st.sampled_from([None, 150, 400]),
    )
    def start(
        self,
        *,
        generations: int,
        live: int,
        policy: Fcfs,
        age: float,
        together: int,
        kv_tokens: int | None,
    ) -> None:
        """Make a scheduler with small limits."""
        limits = Limits(
            generations=generations,
            live=live,
            admitted=live + 2,
            starts=2,
            commands=3,
            rewards=1,
            preemptions=1,
            age_s=age,
            together=together,
        )
        self.scheduler = ActionScheduler(limits, policy)
        self.housing = KVHousing(Residency(kv_tokens) if kv_tokens is not None else None)
        self.scheduler.housing = self.housing
        self.own = Counter[WorkItem]()
        """Tokens behind its prompt, by item."""
        self.limits = limits
        self.now = 0.0
        self.count = 0
        self.items: list[WorkItem] = []
        self.running: list[WorkItem] = []
        self.promised: dict[WorkItem, WorkItem] = {}

    @rule(n=st.integers(1, 5), resumes=st.booleans())
    def submit(self, n: int, *, resumes: bool) -> None:
        """Episodes arrive, new ones or interrupted ones with their environment."""
        for _ in range(n):
            episode = EpisodeId(uid=str(self.count // 2), replica_index=self.count % 2)
            self.items.append(self.scheduler.submit(episode, self.now, resumes=resumes))
            self.count += 1
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        """Something that was under way ends."""
        item = data.draw(st.sampled_from(self.running))
        if item.aborting is AbortReason.WEIGHT_SYNC:
            event = Event.INTERRUPTED
        elif item.aborting is AbortReason.PREEMPTION and data.draw(st.booleans()):
            event = Event.NEEDS_GENERATION
        else:
            event = data.draw(st.sampled_from(ENDS[item.stage]))
        self.end(item, event)

    def end(self, item: WorkItem, event: Event) -> None:
        """Report an end, and see that a slot that was freed for somebody is theirs."""
        causes = [cause for cause, victim in self.promised.items() if victim is item]
        self.running.remove(item)
        if item.stage is Stage.GENERATING:
            self.own[item] += 30
            self.housing.holds(item, prompt=10, own=self.own[item])
        self.scheduler.advance(item, event, self.now)
        if item.stage is Stage.FINALIZING:
            self.running.append(item)
        self.pump(first=causes[0] if causes and not self.scheduler.paused else None)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """The caller of one that waits goes away, perhaps while a slot is freed for it."""
        item = data.draw(st.sampled_from(self.waiting()))
        self.scheduler.advance(item, Event.FAILED, self.now)
        self.promised.pop(item, None)
        self.pump()

    def waiting(self) -> list[WorkItem]:
        """Items that wait in a queue."""
        ended = {Stage.DONE, Stage.LEFT}
        return [i for i in self.items if i.stage not in ended and i not in self.running]

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @precondition(lambda self: self.items)
    @rule(data=st.data(), tokens=st.floats(0, 1e5), stale=st.booleans())
    def predict(self, data: st.DataObject, tokens: float, *, stale: bool) -> None:
        """A prediction arrives; a stale one changes nothing."""
        item = data.draw(st.sampled_from(self.items))
        before = item.predicted, item.rank, item.stage
        self.scheduler.predict(item, tokens, generation=item.generations - stale)
        if stale:
            assert (item.predicted, item.rank, item.stage) == before

    @rule()
    def pause(self) -> None:
        """A weight sync interrupts all generations."""
        self.scheduler.paused = True
        self.scheduler.interrupt_all()
        generating = [item for item in self.running if item.stage is Stage.GENERATING]
        assert all(item.aborting is AbortReason.WEIGHT_SYNC for item in generating)

    @rule()
    def resume(self) -> None:
        """The weight sync is over."""
        self.scheduler.paused = False
        self.pump()

    def pump(self, first: WorkItem | None = None) -> None:
        """Begin what may; `first` must get the first generation, since a slot was freed for it."""
        free = self.limits.generations - self.generating()
        turn = {item: self.turn(item) for item in self.waiting()}
        begun = self.scheduler.generate(self.now)
        left = [turn[item] for item in turn if item.stage is Stage.RESUMING]
        assert all(turn[item] <= min(left, default=5) for item in begun), "served out of turn"
        assert first is None or begun[0] is first
        for item in begun:
            self.promised.pop(item, None)
        for victim in self.scheduler.preempt(self.now):
            cause = victim.partner
            assert free == len(begun), "preempted although a slot was free"
            assert cause is not None
            assert cause.high > victim.high
            self.promised[cause] = victim
        self.running += begun + self.scheduler.interact(self.now)
        again = self.scheduler.generate(self.now), self.scheduler.interact(self.now)
        assert again == ([], []), "more could have begun"

    def turn(self, item: WorkItem) -> int:
        """Whose slot was freed goes first, then who has aged, then high, low and pending ones."""
        if item.stage is Stage.PROMISED:
            return 0
        if item.queued_at <= self.now - self.limits.age_s:
            return 1
        if item.stage is Stage.RESUMING:
            return 2 if item.high else 3
        return 4

    def generating(self) -> int:
        """Generations under way, as the worker counts them."""
        return sum(item.stage is Stage.GENERATING for item in self.running)

    @invariant()
    def holds(self) -> None:
        """The scheduler's own assertions hold, and its slots are the worker's."""
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert self.generating() <= self.limits.generations
            self.check_housing()

    def check_housing(self) -> None:
        """Exactly those hold a context that are between their first generation and their last."""
        if (residency := self.housing.residency) is not None:
            residency.check()
            live = [item for item in self.items if item.stage in LIVE]
            assert {i for i in live if i.stage is not Stage.FINALIZING} == set(residency)

    def teardown(self) -> None:
        """Left alone, every item ends: nothing is lost in a queue."""
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.paused = False
        self.pump()
        ends = {
            Stage.STARTING: Event.STARTED,
            Stage.GENERATING: Event.NEEDS_ENV_STEP,
            Stage.ACTING: Event.TERMINATED,
            Stage.FINALIZING: Event.FINALIZED,
            Stage.REWARDING: Event.REWARDED,
        }
        while self.running:
            item = self.running[-1]
            self.now += 1
            interrupted = item.aborting is AbortReason.WEIGHT_SYNC
            self.end(item, Event.INTERRUPTED if interrupted else ends[item.stage])
            self.scheduler.check()
        assert all(item.stage in {Stage.DONE, Stage.LEFT} for item in self.items)


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40)
