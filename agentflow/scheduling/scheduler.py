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
from typing import TYPE_CHECKING

from agentflow.scheduling import stages as at
from agentflow.scheduling.items import AbortReason, WorkItem
from agentflow.scheduling.stages import FOR_GENERATION, IN_FLIGHT, LIVE, WAITING, Event
from priority.ordered_set import OrderedSet
from priority.rank_queue import RankQueue
from priority.residency import Footprint
from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
    from agentflow.types import EpisodeId
    from priority.policies import Policy
    from priority.residency import Residency


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


class ActionScheduler:
    """Places, limits, next, victim, reclassify."""

    def __init__(self, limits: Limits, policy: Policy) -> None:
        self._limits = limits
        self._policy = policy
        self._order = itertools.count()
        tickets = itertools.count(1)
        self._queues = {
            stage: RankQueue[WorkItem](
                tickets, ages=limits.age_s < _NEVER and stage in FOR_GENERATION
            )
            for stage in WAITING
        }
        inflight = {stage: OrderedSet[WorkItem]() for stage in IN_FLIGHT}
        self._places = self._queues | inflight
        self._generating = inflight[at.GENERATING]
        self._victims = OrderedSet[WorkItem]()
        """Generations that may be preempted; the newest loses the least."""
        self.snapshot = PrioritySnapshot()
        """What is known from elsewhere; an item is ranked by it when it enters a queue."""
        self.detached = 0
        """Environments of interrupted episodes that will come back; they count as admitted."""
        self.residency: Residency[WorkItem] | None = None
        """Who may hold a context on the engine; None: everybody."""
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
            episode=episode,
            order=next(self._order),
            stage=stage,
            arrived_at=now,
            queued_at=now,
            footprint=Footprint(episode.uid),
        )
        self.reclassify(item)
        self._queues[stage].add(item, first=resumes)
        return item

    def advance(self, item: WorkItem, event: Event, now: float) -> None:
        """Move `item` by `event`. Raises IllegalTransition and changes nothing."""
        stage = item.stage.after(event)
        if stage in FOR_GENERATION:
            self.reclassify(item)
        self._leave(item)
        item.stage, item.queued_at = stage, now
        self._enter(item)
        if self.residency is not None:
            self._house(item, self.residency)

    def holds(self, item: WorkItem, *, prompt: int, own: int) -> None:
        """Take note of an item's context in tokens: its first prompt, and what came behind it."""
        item.footprint = item.footprint._replace(prompt=prompt, own=own)
        if self.residency is not None and item in self.residency:
            self.residency.grow(item, item.footprint)

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
        limits, places = self._limits, self._places
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
        queues = [self._queues[at.RESUMING]]
        if self.live < self._limits.live and self._may_enter(now):
            queues.append(self._queues[at.PENDING])
        if self._limits.age_s < _NEVER:
            since = now - self._limits.age_s
            aged = [item for q in queues if (item := q.oldest()) and item.queued_at <= since]
            if aged:
                return min(aged, key=lambda item: (item.queued_at, item.order))
        return next((item for queue in queues if (item := queue.first())), None)

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

    def counts(self) -> dict[at.Stage, int]:
        """How many items are at each stage."""
        return {stage: len(place) for stage, place in self._places.items()}

    def waiting(self) -> dict[at.Stage, list[WorkItem]]:
        """Who waits at each stage, in the order of service; an aged item goes before all of it."""
        return {stage: [*queue] for stage, queue in self._queues.items()}

    def _gathers(self) -> bool:
        """Whether free slots wait for more, to be filled together; never for a high item."""
        resuming, promised = self._queues[at.RESUMING], self._queues[at.PROMISED]
        waiting = len(resuming) + len(self._queues[at.PENDING])
        enough = min(self._limits.together, self._limits.generations, waiting)
        if self._limits.generations - len(self._generating) >= enough or promised:
            return False
        return (first := resuming.first()) is None or not first.high

    def _may_enter(self, now: float) -> bool:
        """Whether the engine has KV memory for the next pending item; smaller ones do not pass."""
        if self.residency is None:
            return True
        queue, age_s = self._queues[at.PENDING], self._limits.age_s
        aged = queue.oldest() if age_s < _NEVER else None
        item = aged if aged and aged.queued_at <= now - age_s else queue.first()
        return item is None or self.residency.fits(item.footprint)

    def _house(self, item: WorkItem, residency: Residency[WorkItem]) -> None:
        """Let in who begins to generate and out who needs no context; park who exceeds memory."""
        if item.stage is at.GENERATING:
            if item not in residency:
                residency.enter(item, item.footprint)
        elif item.stage is at.RESUMING:
            if residency.exceeds(item):  # it is senior to all that have not begun
                self.advance(item, Event.PARKED, item.arrived_at)
        elif item.stage not in LIVE or item.stage is at.FINALIZING:
            residency.leave(item)

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
        self._places[item.stage].discard(item)
        self.live -= item.stage in LIVE
        if item.stage is at.GENERATING:
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
        if stage is at.PENDING:
            self._queues[at.PENDING].add(item, first=item.generations > 0)
        elif (place := self._places.get(stage)) is not None:
            place.add(item)
            self.live += stage in LIVE
        if stage is at.GENERATING:
            item.generations += 1
            bounded = item.preemptions < self._limits.preemptions
            if self._policy.preempts and bounded and not item.high:
                self._victims.add(item)

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        limits, places = self._limits, self._places
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
        if self.residency is not None:
            self.residency.check()
            inside = {item for stage, item in items if stage in LIVE and stage is not at.FINALIZING}
            assert inside == set(self.residency)
        resuming = [i.high for i in self._queues[at.RESUMING]]
        assert resuming == sorted(resuming, reverse=True)
        entitled = [i for i in self._queues[at.PROMISED] if i.partner is None]
        assert len(self._generating) + len(entitled) <= limits.generations
        assert all(v.aborting is None and not v.high for v in self._victims)
