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
from math import inf
from typing import TYPE_CHECKING

from agentflow.scheduling import stages as at
from agentflow.scheduling.items import WorkItem
from agentflow.scheduling.stages import AbortReason, Event, IllegalTransition
from priority.ordered_set import OrderedSet
from priority.rank_queue import RankQueue
from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.protocols import Housing
    from agentflow.types import EpisodeId
    from priority.policies import Policy


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
    age_s: float = inf
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
        ages = dict.fromkeys(at.FOR_GENERATION, limits.age_s)
        self._queues = {stage: RankQueue[WorkItem](ages.get(stage, inf)) for stage in at.WAITING}
        self.places = self._queues | {stage: OrderedSet[WorkItem]() for stage in at.IN_FLIGHT}
        """Who is at each stage; those that wait in the order of service, but for aged ones."""
        self._generating = self.places[at.GENERATING]
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
        left = item.stage
        stage = at.TRANSITIONS.get((left, event))
        if stage is None:
            raise IllegalTransition(f"event {event} is not allowed at stage {left}")
        if stage in at.FOR_GENERATION:
            self.reclassify(item)
        self.places[left].discard(item)
        item.stage, item.queued_at = stage, now
        self.live += (stage in at.LIVE) - (left in at.LIVE)
        if stage is at.PENDING:
            self._queues[at.PENDING].add(item, first=item.generations > 0)
        elif stage not in at.OUT:
            self.places[stage].add(item)
        if left is at.GENERATING:
            self._victims.discard(item)
            item.preemptions += stage is at.RESUMING and item.aborting is AbortReason.PREEMPTION
            item.aborting = None
        elif stage is at.GENERATING:
            item.generations += 1
            bounded = item.preemptions < self._limits.preemptions
            if self._policy.preempts and bounded and not item.high:
                self._victims.add(item)
        if item.partner is not None:
            self._part(item, item.partner)
        if self.housing is not None and self.housing.moved(item):
            self.advance(item, Event.PARKED, item.arrived_at)  # senior to all that have not begun

    def predict(self, item: WorkItem, tokens: float, *, generation: int) -> None:
        """Take a prediction of what is left; one made for an earlier generation is discarded."""
        if generation == item.generations:
            item.told = tokens
            if item.stage in at.FOR_GENERATION:
                self.reclassify(item)
                self._queues[item.stage].requeue(item)

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
        limit = 0 if self.paused or self._gathers() else self._limits.generations
        return self._fill(at.GENERATING, limit, self.next, now)

    def preempt(self, now: float) -> list[WorkItem]:
        """Generations to abort now, each for a high item that waits while no slot is free."""
        victims, waiting = list[WorkItem](), self._queues[at.RESUMING]
        may = not self.paused and len(self._generating) >= self._limits.generations
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
        limits, queues = self._limits, self._queues
        judged = self._fill(at.REWARDING, limits.rewards, queues[at.REWARD_QUEUED].first, now)
        acting = self._fill(at.ACTING, limits.commands, queues[at.ENV_QUEUED].first, now)
        room = limits.admitted - len(queues[at.PENDING]) - self.detached - self.live
        starting = self._fill(at.STARTING, min(limits.starts, room), queues[at.NEW].first, now)
        return judged + acting + starting

    def next(self, now: float) -> WorkItem | None:
        """The item that the next generation slot belongs to, or None."""
        queues, limits = self._queues, self._limits
        if (promised := queues[at.PROMISED].first()) is not None:
            return promised
        resuming = queues[at.RESUMING].first(now)
        pending = queues[at.PENDING].first(now) if self.live < limits.live else None
        if pending is not None and self.housing is not None and not self.housing.fits(pending):
            pending = None  # and smaller ones do not pass it
        if resuming is None or pending is None or pending.queued_at > now - limits.age_s:
            return resuming or pending
        return min(resuming, pending, key=lambda item: (item.queued_at, item.order))

    def victim(self) -> WorkItem | None:
        """The newest low-priority generation that may still be preempted, or None."""
        return self._victims.newest()

    def reclassify(self, item: WorkItem) -> None:
        """Give `item` its class and rank by what is known now; before it enters a queue."""
        known, episode = self.snapshot, item.episode
        item.predicted = known.predicted.get(episode) if item.told is None else item.told
        item.group_left = known.group_left.get(episode.uid)
        item.high, item.rank = self._policy.classify(item)

    def _gathers(self) -> bool:
        """Whether free slots wait for more, to be filled together; never for a high item."""
        limits, queues = self._limits, self._queues
        waiting = len(queues[at.RESUMING]) + len(queues[at.PENDING])
        enough = min(limits.together, limits.generations, waiting)
        head = queues[at.PROMISED].first() or queues[at.RESUMING].first()
        return limits.generations - len(self._generating) < enough and not (head and head.high)

    def _fill(
        self, stage: at.Stage, limit: int, pick: Callable[[float], WorkItem | None], now: float
    ) -> list[WorkItem]:
        """Begin the actions of those whom `pick` names, up to the limit of their stage."""
        place, begun = self.places[stage], list[WorkItem]()
        while len(place) < limit and (item := pick(now)) is not None:
            self.advance(item, Event.DISPATCHED, now)
            begun.append(item)
        return begun

    def _part(self, item: WorkItem, partner: WorkItem) -> None:
        """Part an item that moves on from who waits for its slot, or whose slot it waited for."""
        item.partner = partner.partner = None
        if partner.stage is at.PROMISED:  # that slot is free now: before those that still wait
            partner.rank = -inf
            self._queues[at.PROMISED].requeue(partner)

    def check(self) -> None:
        """Assert the invariants that hold between any two calls."""
        limits, places, generating = self._limits, self.places, self._generating
        items = [(stage, item) for stage, place in places.items() for item in place]
        assert all(item.stage is stage for stage, item in items)
        assert len({item for _, item in items}) == len(items) == sum(map(len, places.values()))
        assert self.live == sum(stage in at.LIVE for stage, _ in items) <= limits.live
        assert len(places[at.ACTING]) <= limits.commands
        assert len(places[at.REWARDING]) <= limits.rewards
        assert len(places[at.STARTING]) <= limits.starts
        # Preemptions are bounded, and each is for a high item, whose slot it is once it is free.
        assert all(item.preemptions <= limits.preemptions for _, item in items)
        assert all(v.aborting is None and not v.high and v in generating for v in self._victims)
        causes = [(item.partner, item) for item in generating if item.partner is not None]
        assert all(c.partner is v and c.high > v.high and v.aborting for c, v in causes)
        promised, resuming = list(places[at.PROMISED]), list(places[at.RESUMING])
        owed = [item for item in promised if item.partner is None]
        assert len(generating) + len(owed) <= limits.generations
        assert promised == owed + [item for item in promised if (item, item.partner) in causes]
        # Then high before low, and all of them before pending ones.
        assert resuming == sorted(resuming, key=lambda item: not item.high)
        assert not promised + resuming or self.next(-inf) is (promised + resuming)[0]
