"""ActionScheduler as a state machine: whatever the order of events, its invariants hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentflow.scheduling import (
    AbortReason,
    ActionScheduler,
    CommandKind,
    Event,
    Limits,
    Stage,
    WorkItem,
)
from agentflow.types import EpisodeId
from priority.policies import Fcfs, FcfsPreempt, LongestPredictedFirst, Priority

if TYPE_CHECKING:
    from priority.policies import Standing


class Marked:
    """High for every third arrival, so that classes mix at random."""

    preempts = True

    def classify(self, standing: Standing) -> Priority:
        """High for multiples of three, ranked by prediction."""
        return Priority(high=standing.order % 3 == 0, rank=standing.predicted or 0.0)


ENDS = {
    CommandKind.START: [Event.STARTED, Event.FAILED],
    CommandKind.ACT: [Event.NEEDS_GENERATION, Event.TERMINATED, Event.FAILED],
    CommandKind.JUDGE: [Event.REWARDED, Event.FAILED],
    CommandKind.GENERATE: [
        Event.NEEDS_ENV_STEP,
        Event.NEEDS_GENERATION,
        Event.TERMINATED,
        Event.FAILED,
    ],
}
FINALS = [Event.FINALIZED, Event.FINALIZED_UNJUDGED, Event.FAILED]


class Machine(RuleBasedStateMachine):
    """Plays the worker: carries commands out in any order, and reports any allowed end."""

    @initialize(
        generations=st.integers(1, 4),
        live=st.integers(1, 8),
        policy=st.sampled_from([Fcfs(), FcfsPreempt(window=3), Marked(), LongestPredictedFirst()]),
        age=st.sampled_from([3.0, float("inf")]),
    )
    def start(self, generations: int, live: int, policy: Fcfs, age: float) -> None:
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
        )
        self.scheduler = ActionScheduler(limits, policy)
        self.limits = limits
        self.now = 0.0
        self.count = 0
        self.items: list[WorkItem] = []
        self.running: dict[WorkItem, CommandKind | None] = {}
        self.promised: dict[WorkItem, WorkItem] = {}

    @rule(n=st.integers(1, 5), resumes=st.booleans())
    def submit(self, n: int, *, resumes: bool) -> None:
        """Episodes arrive, new ones or interrupted ones with their environment."""
        for _ in range(n):
            episode = EpisodeId(uid=str(self.count))
            self.items.append(self.scheduler.submit(episode, self.now, resumes=resumes))
            self.count += 1
        self.pump()

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end_one(self, data: st.DataObject) -> None:
        """Something that was under way ends."""
        item = data.draw(st.sampled_from(sorted(self.running, key=lambda i: i.order)))
        kind = self.running.pop(item)
        if item.aborting is AbortReason.WEIGHT_SYNC:
            event = Event.INTERRUPTED
        elif item.aborting is AbortReason.PREEMPTION and data.draw(st.booleans()):
            event = Event.NEEDS_GENERATION
        else:
            event = data.draw(st.sampled_from(ENDS[kind] if kind else FINALS))
        causes = [cause for cause, victim in self.promised.items() if victim is item]
        self.scheduler.advance(item, event, self.now)
        if item.stage is Stage.FINALIZING:
            self.running[item] = None
        self.pump(first=causes[0] if causes and not self.scheduler.paused else None)

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
        assert all(
            item.aborting is AbortReason.WEIGHT_SYNC
            for item, kind in self.running.items()
            if kind is CommandKind.GENERATE
        )

    @rule()
    def resume(self) -> None:
        """The weight sync is over."""
        self.scheduler.paused = False
        self.pump()

    def pump(self, first: WorkItem | None = None) -> None:
        """Take commands; `first` must get the first generation, since a slot was freed for it."""
        free = self.limits.generations - self.generating()
        dispatched = 0
        for command in self.scheduler.commands(self.now):
            item = command.item
            match command.kind:
                case CommandKind.ABORT:
                    assert free <= dispatched, "preempted although a slot was free"
                    assert item.slot_for is not None
                    assert item.slot_for.high > item.high
                    self.promised[item.slot_for] = item
                case CommandKind.GENERATE:
                    if first is not None and not dispatched:
                        assert item is first
                    dispatched += 1
                    self.promised.pop(item, None)
                    self.running[item] = command.kind
                case kind:
                    self.running[item] = kind
        assert not self.scheduler.commands(self.now), "more could have started"
        for item in [i for i in self.promised if i.stage is not Stage.HP_RESUME]:
            del self.promised[item]

    def generating(self) -> int:
        """Generations under way, as the worker counts them."""
        return sum(kind is CommandKind.GENERATE for kind in self.running.values())

    @invariant()
    def holds(self) -> None:
        """The scheduler's own assertions hold, and its slots are the worker's."""
        if hasattr(self, "scheduler"):
            self.scheduler.check()
            assert self.generating() <= self.limits.generations

    def teardown(self) -> None:
        """Left alone, every item ends: nothing is lost in a queue."""
        if not hasattr(self, "scheduler"):
            return
        self.scheduler.paused = False
        self.pump()
        while self.running:
            item, kind = self.running.popitem()
            self.now += 1
            interrupted = item.aborting is AbortReason.WEIGHT_SYNC
            ends = {
                None: Event.FINALIZED,
                CommandKind.START: Event.STARTED,
                CommandKind.ACT: Event.TERMINATED,
                CommandKind.JUDGE: Event.REWARDED,
                CommandKind.GENERATE: Event.INTERRUPTED if interrupted else Event.NEEDS_ENV_STEP,
            }
            self.scheduler.advance(item, ends[kind], self.now)
            if item.stage is Stage.FINALIZING:
                self.running[item] = None
            self.pump()
            self.scheduler.check()
        assert all(item.stage in {Stage.DONE, Stage.LEFT} for item in self.items)


TestScheduler = Machine.TestCase
TestScheduler.settings = settings(max_examples=60, stateful_step_count=40)
