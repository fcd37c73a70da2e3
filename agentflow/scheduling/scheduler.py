"""ActionScheduler: every episode's next action, decided without I/O.

Owns the place of every item: a queue for each waiting stage, an in-flight set for each stage that
holds a resource. `advance` tells it what happened, `commands` says what may start now; `now` is an
argument. Invariants (asserted by `check`): an item is in exactly one place; no limit is exceeded;
a promised slot goes to the item it was promised to; preemptions are bounded; equals never preempt.
"""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.scheduling.items import AbortReason, Command, CommandKind, WorkItem
from agentflow.scheduling.queues import RankQueue
from agentflow.scheduling.stages import (
    FOR_GENERATION,
    IN_FLIGHT,
    LIVE_IN_FLIGHT,
    LIVE_WAITING,
    OUT,
    RESUME,
    WAITING,
    Event,
    Stage,
    target,
)
from priority.ordered_set import OrderedSet
from priority.policies import Standing
from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sized

    from agentflow.types import EpisodeId
    from priority.policies import Policy


_NEVER = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many of each may be under way at once."""

    generations: int
    """G: generation slots of the engine."""
    live: int
    """C: episodes between their first generation and their last command."""
    admitted: int
    """Environments: C and those that are starting ahead (C · async_factor)."""
    starts: int
    commands: int
    rewards: int
    preemptions: int = 2
    """Of one item over its life; then it is left alone."""
    age_s: float = _NEVER
    """An item that has waited this long for a generation goes first, whatever its class."""


class ActionScheduler:
    """Places, limits, next, victim, reclassify."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self._limits = limits
        self._policy = policy
        self._order = itertools.count()
        tickets = itertools.count(1)
        self._ages = ages = limits.age_s < _NEVER
        self._queues = {
            stage: RankQueue(tickets, ages=ages and stage in FOR_GENERATION) for stage in WAITING
        }
        self._inflight = {stage: OrderedSet[WorkItem]() for stage in IN_FLIGHT}
        self._victims = OrderedSet[WorkItem]()
        """Generations that may be preempted; the newest loses the least."""
        self._promised = OrderedSet[WorkItem]()
        """Waiting items for which a generation is being aborted; in no queue meanwhile."""
        self._for_generation = [self._queues[stage] for stage in FOR_GENERATION]
        self._live_places: list[Sized] = [
            *(self._queues[stage] for stage in LIVE_WAITING),
            *(self._inflight[stage] for stage in LIVE_IN_FLIGHT),
            self._promised,
        ]
        self._entitled = deque[WorkItem]()
        """Of these, the ones whose slot has come free."""
        self.snapshot = PrioritySnapshot()
        """What is known from elsewhere; an item is ranked by it when it enters a queue."""
        self.detached = 0
        """Environments of interrupted episodes that will come back; they count as admitted."""
        self.paused = False
        """While True no generation is dispatched or preempted; everything else goes on."""

    # --- what happened ------------------------------------------------------------------------

    def submit(self, episode: EpisodeId, now: float, *, resumes: bool = False) -> WorkItem:
        """Take an episode in; one that `resumes` has its environment and goes before its equals.

        It must not wait for a start: starts may be waiting for the environment that it holds.
        """
        stage = Stage.PENDING if resumes else Stage.NEW
        item = WorkItem(episode=episode, order=next(self._order), stage=stage, queued_at=now)
        self.reclassify(item)
        self._queues[stage].add(item, first=resumes)
        return item

    def advance(self, item: WorkItem, event: Event, now: float) -> None:
        """Move `item` by `event`. Raises IllegalTransition and changes nothing."""
        stage = target(item.stage, event)
        if stage in FOR_GENERATION:
            self.reclassify(item)
        self._leave(item)
        item.stage, item.queued_at = stage, now
        self._enter(item)

    def predict(self, item: WorkItem, tokens: float, *, generation: int) -> None:
        """Take a prediction of what is left; one made for an earlier generation is discarded."""
        if generation != item.generations or item.stage in OUT:
            return
        item.predicted = tokens
        if item.stage in FOR_GENERATION and item not in self._promised:
            self.reclassify(item)
            self._leave(item)
            self._enter(item)

    def interrupt_all(self) -> list[Command]:
        """Abort every generation in flight, for a weight sync; it outranks a preemption."""
        generating = self._inflight[Stage.GENERATING]
        todo = [Command(CommandKind.ABORT, item) for item in generating if item.aborting is None]
        for item in generating:
            item.aborting = AbortReason.WEIGHT_SYNC
            self._victims.discard(item)
        return todo

    # --- what may start -----------------------------------------------------------------------

    def commands(self, now: float) -> list[Command]:
        """Everything that may start now, in order; each is thereby under way."""
        todo = [*self._fill(Stage.REWARD_QUEUED, CommandKind.JUDGE, now)]
        todo += self._fill(Stage.ENV_QUEUED, CommandKind.ACT, now)
        todo += self._generate(now)
        todo += self._preempt()
        todo += self._fill(Stage.NEW, CommandKind.START, now)
        return todo

    def next(self, now: float) -> WorkItem | None:
        """The item that the next generation slot belongs to, or None."""
        if self._entitled:
            return self._entitled[0]
        if (promised := next(iter(self._promised), None)) is not None:
            return promised
        queues = self._for_generation
        if self.live >= self._limits.live:
            queues = queues[:-1]  # all but PENDING, whose items would join the live ones
        if self._ages:
            oldest = [item for q in queues if (item := q.oldest()) and self._aged(item, now)]
            if oldest:
                return min(oldest, key=lambda item: (item.queued_at, item.order))
        for queue in queues:
            if (item := queue.first()) is not None:
                return item
        return None

    def victim(self) -> WorkItem | None:
        """The newest low-priority generation that may still be preempted, or None."""
        return self._victims.newest()

    def reclassify(self, item: WorkItem) -> None:
        """Give `item` its class and rank by what is known now; before it enters a queue."""
        episode, snapshot, predicted = item.episode, self.snapshot, item.predicted
        if predicted is None:
            predicted = snapshot.predicted.get(episode)
        left = snapshot.group_left.get(episode.uid)
        standing = Standing(order=item.order, predicted=predicted, group_left=left)
        priority = self._policy.classify(standing)
        item.high, item.rank = priority.high, priority.rank

    @property
    def generating(self) -> int:
        """Generations in flight."""
        return len(self._inflight[Stage.GENERATING])

    @property
    def live(self) -> int:
        """Episodes between their first generation and their last command."""
        return sum(map(len, self._live_places))

    def counts(self) -> dict[Stage, int]:
        """How many items are at each stage."""
        counts = {stage: len(queue) for stage, queue in self._queues.items()}
        counts |= {stage: len(inflight) for stage, inflight in self._inflight.items()}
        counts[Stage.HP_RESUME] += len(self._promised)
        return counts

    def waiting(self) -> dict[Stage, list[WorkItem]]:
        """Who waits at each stage, in the order of service; an aged item goes before all of it."""
        lines = {stage: queue.in_order() for stage, queue in self._queues.items()}
        lines[Stage.HP_RESUME][:0] = self._promised
        return lines

    def _fill(self, stage: Stage, kind: CommandKind, now: float) -> Iterator[Command]:
        while self._room(kind) > 0 and (item := self._queues[stage].first()) is not None:
            self.advance(item, Event.DISPATCHED, now)
            yield Command(kind, item)

    def _generate(self, now: float) -> Iterator[Command]:
        while self._room(CommandKind.GENERATE) > 0 and (item := self.next(now)) is not None:
            item.generations += 1
            self.advance(item, Event.DISPATCHED, now)
            yield Command(CommandKind.GENERATE, item)

    def _preempt(self) -> Iterator[Command]:
        """Free a slot for each waiting high item; never reached while a slot is free for it."""
        waiting = self._queues[Stage.HP_RESUME]
        may = self._policy.preempts and not self.paused
        while may and (item := waiting.first()) and (victim := self.victim()):
            waiting.remove(item)
            self._promised.add(item)
            self._victims.discard(victim)
            item.slot_from, victim.slot_for = victim, item
            victim.aborting = AbortReason.PREEMPTION
            yield Command(CommandKind.ABORT, victim)

    def _room(self, kind: CommandKind) -> int:
        limits, inflight = self._limits, self._inflight
        match kind:
            case CommandKind.JUDGE:
                return limits.rewards - len(inflight[Stage.REWARDING])
            case CommandKind.ACT:
                return limits.commands - len(inflight[Stage.ACTING])
            case CommandKind.START:
                starting = len(inflight[Stage.STARTING])
                ready = len(self._queues[Stage.PENDING]) + self.detached
                admitted = starting + ready + self.live
                return min(limits.starts - starting, limits.admitted - admitted)
            case CommandKind.GENERATE | CommandKind.ABORT:
                free = limits.generations - len(inflight[Stage.GENERATING])
                return 0 if self.paused else free

    def _aged(self, item: WorkItem, now: float) -> bool:
        return now - item.queued_at >= self._limits.age_s

    # --- places -------------------------------------------------------------------------------

    def _leave(self, item: WorkItem) -> None:
        if item in self._promised:
            self._promised.discard(item)
            if item in self._entitled:
                self._entitled.remove(item)
        elif item.stage in WAITING:
            self._queues[item.stage].remove(item)
        else:
            self._inflight[item.stage].discard(item)
            self._victims.discard(item)
        if item.slot_from is not None:
            item.slot_from.slot_for = None
            item.slot_from = None
        if item.slot_for is not None:
            self._entitled.append(item.slot_for)
            item.slot_for.slot_from = None
            item.slot_for = None

    def _enter(self, item: WorkItem) -> None:
        if item.stage is RESUME or item.stage is Stage.HP_RESUME:
            item.preemptions += item.aborting is AbortReason.PREEMPTION
            item.stage = Stage.HP_RESUME if item.high else Stage.LP_RESUME
        item.aborting = None
        if item.stage in WAITING:
            self._queues[item.stage].add(item)
        elif item.stage in IN_FLIGHT:
            self._inflight[item.stage].add(item)
            bounded = item.preemptions < self._limits.preemptions
            if item.stage is Stage.GENERATING and not item.high and bounded:
                self._victims.add(item)

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        limits, inflight = self._limits, self._inflight
        places: list[tuple[Stage, Iterable[WorkItem]]] = [*self._queues.items(), *inflight.items()]
        items = [item for _, place in places for item in place]
        assert len({*items, *self._promised}) == len(items) + len(self._promised)
        assert all(item.stage is stage for stage, place in places for item in place)
        assert all(item.stage is Stage.HP_RESUME for item in self._promised)
        assert len(inflight[Stage.GENERATING]) <= limits.generations
        assert len(inflight[Stage.ACTING]) <= limits.commands
        assert len(inflight[Stage.REWARDING]) <= limits.rewards
        assert len(inflight[Stage.STARTING]) <= limits.starts
        assert self.live <= limits.live
        for item in inflight[Stage.GENERATING]:
            assert item.preemptions <= limits.preemptions
            if (cause := item.slot_for) is not None:
                assert cause in self._promised
                assert cause.slot_from is item
                assert cause.high
                assert not item.high
        assert all(i.slot_from is not None or i in self._entitled for i in self._promised)
        assert all(v.aborting is None and not v.high for v in self._victims)
