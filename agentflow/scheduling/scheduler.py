"""ActionScheduler: every episode's next action, decided without I/O.

Owns the place of every item: a queue for each waiting stage, an in-flight set for each stage that
holds a resource. `advance` tells it what happened; `generate`, `preempt` and `interact` say whose
action begins, or is aborted, now. `now` is an argument. Invariants (asserted by `check`): an item
is in exactly one place, that of its stage; no limit is exceeded; a promised slot goes to the item
it was promised to; preemptions are bounded; equals never preempt.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from agentflow.scheduling import stages as at
from agentflow.scheduling.items import AbortReason, WorkItem
from agentflow.scheduling.stages import (
    FOR_GENERATION,
    IN_FLIGHT,
    LIVE,
    OUT,
    TRANSITIONS,
    WAITING,
    Event,
    IllegalTransition,
)
from priority.ordered_set import OrderedSet
from priority.rank_queue import RankQueue
from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
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
    together: int = 1
    """So many generations begin at once where more wait than slots are free: a prefill stops every
    decode, so that one for several costs less than one for each."""


class Housing(Protocol):
    """Who may hold a context in the engine's memory; hears of every move."""

    def fits(self, item: WorkItem) -> bool:
        """Whether a pending item may begin to generate."""
        ...

    def moved(self, item: WorkItem) -> bool:
        """Hear where an item is now; True: it must give its context up, and wait."""
        ...


class ActionScheduler:
    """Places, limits, next, victim, reclassify."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self._limits = limits
        self._policy = policy
        self._order = itertools.count()
        self._ages = limits.age_s < _NEVER
        tickets = itertools.count(1)
        self._queues = {
            stage: RankQueue[WorkItem](tickets, ages=self._ages and stage in FOR_GENERATION)
            for stage in WAITING
        }
        inflight = {stage: OrderedSet[WorkItem]() for stage in IN_FLIGHT}
        self.places = self._queues | inflight
        """Who is at each stage; those that wait in the order of service, but for aged ones."""
        self._generating = inflight[at.GENERATING]
        self._victims = OrderedSet[WorkItem]()
        """Generations that may be preempted; the newest loses the least."""
        self.snapshot = PrioritySnapshot()
        """What is known from elsewhere; an item is ranked by it when it enters a queue."""
        self.detached = 0
        """Environments of interrupted episodes that will come back; they count as admitted."""
        self.housing: Housing | None = None
        """None: everybody may hold a context."""
        self.live = 0
        """Episodes between their first generation and their last command."""
        self.paused = False
        """While True no generation is dispatched or preempted; everything else goes on."""

    # --- what happened ------------------------------------------------------------------------

    def submit(self, episode: EpisodeId, now: float, *, resumes: bool = False) -> WorkItem:
        """Take an episode in; one that `resumes` has its environment and goes before its equals.

        It must not wait for a start: starts may be waiting for the environment that it holds.
        """
        stage = at.PENDING if resumes else at.NEW
        item = WorkItem(
            episode=episode, order=next(self._order), stage=stage, arrived_at=now, queued_at=now
        )
        self.reclassify(item)
        self._queues[stage].add(item, first=resumes)
        return item

    def advance(self, item: WorkItem, event: Event, now: float) -> None:
        """Move `item` by `event`. Raises IllegalTransition and changes nothing."""
        stage = TRANSITIONS.get((item.stage, event))
        if stage is None:
            raise IllegalTransition(f"event {event} is not allowed at stage {item.stage}")
        if stage in FOR_GENERATION:
            self.reclassify(item)
        self._leave(item)
        item.stage, item.queued_at = stage, now
        self._enter(item)
        if self.housing is not None and self.housing.moved(item):
            self.advance(item, Event.PARKED, item.arrived_at)  # senior to all that have not begun

    def predict(self, item: WorkItem, tokens: float, *, generation: int) -> None:
        """Take a prediction of what is left; one made for an earlier generation is discarded."""
        if generation == item.generations:
            item.told = tokens
            if item.stage in FOR_GENERATION:
                self.reclassify(item)
                self._leave(item)
                self._enter(item)

    def interrupt_all(self) -> list[WorkItem]:
        """Have every generation aborted for a weight sync, which outranks a preemption.

        Returns those whose abort was not under way already.
        """
        todo = [item for item in self._generating if item.aborting is None]
        for item in self._generating:
            item.aborting = AbortReason.WEIGHT_SYNC
            self._victims.discard(item)
        return todo

    # --- what begins --------------------------------------------------------------------------

    def generate(self, now: float) -> list[WorkItem]:
        """Items whose generation begins now."""
        begun = list[WorkItem]()
        if self._gathers():
            return begun
        while self._has_slot() and (item := self.next(now)) is not None:
            self.advance(item, Event.DISPATCHED, now)
            begun.append(item)
        return begun

    def preempt(self, now: float) -> list[WorkItem]:
        """Generations to abort now, each for a high item that waits while no slot is free."""
        victims, waiting = list[WorkItem](), self._queues[at.RESUMING]
        may = not self.paused and not self._has_slot()
        while may and (item := waiting.first()) and item.high and (victim := self.victim()):
            self.advance(item, Event.PREEMPTS, now)
            self._victims.discard(victim)
            item.partner, victim.partner = victim, item
            victim.aborting = AbortReason.PREEMPTION
            victims.append(victim)
        return victims

    def interact(self, now: float) -> list[WorkItem]:
        """Items whose reward, command or start begins now; each stage has its own limit.

        Rewards need environments as well: they go before new starts, or finished episodes starve.
        """
        limits, places = self._limits, self.places
        judged = self._take(at.REWARD_QUEUED, limits.rewards - len(places[at.REWARDING]), now)
        acting = self._take(at.ENV_QUEUED, limits.commands - len(places[at.ACTING]), now)
        starting = len(places[at.STARTING])
        admitted = starting + len(places[at.PENDING]) + self.detached + self.live
        room = min(limits.starts - starting, limits.admitted - admitted)
        return judged + acting + self._take(at.NEW, room, now)

    def next(self, now: float) -> WorkItem | None:
        """The item that the next generation slot belongs to, or None."""
        if (promised := self._queues[at.PROMISED].first()) is not None:
            return promised
        resuming = self._head(at.RESUMING, now)
        if resuming is not None and not self._ages:
            return resuming
        pending = self._head(at.PENDING, now) if self.live < self._limits.live else None
        if pending is not None and self.housing is not None and not self.housing.fits(pending):
            pending = None  # and smaller ones do not pass it
        if resuming is None or pending is None or pending.queued_at > now - self._limits.age_s:
            return resuming or pending
        return min(resuming, pending, key=lambda item: (item.queued_at, item.order))

    def _head(self, stage: at.Stage, now: float) -> WorkItem | None:
        """The item of a queue that goes next: who has waited too long, else by class and rank."""
        queue = self._queues[stage]
        if self._ages and (aged := queue.oldest()) and aged.queued_at <= now - self._limits.age_s:
            return aged
        return queue.first()

    def victim(self) -> WorkItem | None:
        """The newest low-priority generation that may still be preempted, or None."""
        return self._victims.newest()

    def reclassify(self, item: WorkItem) -> None:
        """Give `item` its class and rank by what is known now; before it enters a queue."""
        known, episode = self.snapshot, item.episode
        item.predicted = known.predicted.get(episode) if item.told is None else item.told
        item.group_left = known.group_left.get(episode.uid)
        item.high, item.rank = self._policy.classify(item)

    @property
    def generating(self) -> int:
        """Generations in flight."""
        return len(self._generating)

    def _gathers(self) -> bool:
        """Whether free slots wait for more, to be filled together; never for a high item."""
        resuming, promised = self._queues[at.RESUMING], self._queues[at.PROMISED]
        waiting = len(resuming) + len(self._queues[at.PENDING])
        enough = min(self._limits.together, self._limits.generations, waiting)
        if self._limits.generations - len(self._generating) >= enough or promised:
            return False
        return (first := resuming.first()) is None or not first.high

    def _has_slot(self) -> bool:
        return not self.paused and len(self._generating) < self._limits.generations

    def _take(self, stage: at.Stage, room: int, now: float) -> list[WorkItem]:
        queue, taken = self._queues[stage], list[WorkItem]()
        while len(taken) < room and (item := queue.first()) is not None:
            self.advance(item, Event.DISPATCHED, now)
            taken.append(item)
        return taken

    # --- places -------------------------------------------------------------------------------

    def _leave(self, item: WorkItem) -> None:
        stage = item.stage
        self.places[stage].discard(item)
        if stage in LIVE:
            self.live -= 1
        if stage is at.GENERATING:
            self._victims.discard(item)
        if (partner := item.partner) is not None:
            item.partner = partner.partner = None
            if partner.stage is at.PROMISED:  # its slot is free now: before those that wait
                self._queues[at.PROMISED].discard(partner)
                partner.rank = -_NEVER
                self._queues[at.PROMISED].add(partner)

    def _enter(self, item: WorkItem) -> None:
        stage = item.stage
        if item.aborting is not None:
            item.preemptions += stage is at.RESUMING and item.aborting is AbortReason.PREEMPTION
            item.aborting = None
        if stage in LIVE:
            self.live += 1
        if stage is at.PENDING:
            self._queues[at.PENDING].add(item, first=item.generations > 0)
        elif stage not in OUT:
            self.places[stage].add(item)
        if stage is at.GENERATING:
            item.generations += 1
            bounded = item.preemptions < self._limits.preemptions
            if self._policy.preempts and bounded and not item.high:
                self._victims.add(item)

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        limits, places = self._limits, self.places
        items = [(stage, item) for stage, place in places.items() for item in place]
        assert all(item.stage is stage for stage, item in items)
        assert len({item for _, item in items}) == len(items) == sum(map(len, places.values()))
        assert self.live == sum(stage in LIVE for stage, _ in items) <= limits.live
        assert len(places[at.ACTING]) <= limits.commands
        assert len(places[at.REWARDING]) <= limits.rewards
        assert len(places[at.STARTING]) <= limits.starts
        for item in self._generating:
            assert item.preemptions <= limits.preemptions
            if (cause := item.partner) is not None:
                assert cause.partner is item
                assert (cause.stage, cause.high, item.high) == (at.PROMISED, True, False)
        resuming = [i.high for i in self._queues[at.RESUMING]]
        assert resuming == sorted(resuming, reverse=True)
        entitled = [i for i in self._queues[at.PROMISED] if i.partner is None]
        assert len(self._generating) + len(entitled) <= limits.generations
        assert all(v.aborting is None and not v.high for v in self._victims)
