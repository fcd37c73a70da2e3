"""RunState: where a run stands, folded from its events; nothing else is known or asked.

Pure: no file, no clock. The same fold serves the live process (its metrics, its look-out for
stalls), `agentflow status` on the files of any run, and the trace.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from agentflow.observe.doing import SERVED, WAITS, Doing, after
from agentflow.observe.histogram import VERSIONS, Histogram
from agentflow.observe.slots import SlotBooks
from agentflow.types import StepStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentflow.observe.records import EventRecord
    from agentflow.types import EpisodeId


class EnvState(StrEnum):
    """What an episode's own environment is in; the judge's is in none of these."""

    STARTING = "starting"
    RUNNING = "running"
    DETACHED = "detached"
    """Kept for an episode that a weight update interrupted."""


_ENV_AFTER: Final[Mapping[str, EnvState | None]] = {
    "env_starting": EnvState.STARTING,
    "env_started": EnvState.RUNNING,
    "resumed": EnvState.RUNNING,
    "env_detached": EnvState.DETACHED,
    "env_stopped": None,
    "restarted_clean": None,
    "given_back": None,
    "dropped": None,
    "ended": None,
}

_DROPPED_AS: Final = ("stale", "surplus", "deadline")
"""Causes of a drop whose tokens have a column of their own; those of others count as failed."""

TOKEN_CAUSES: Final = ("delivered", "failed", "restarted", "forked", *_DROPPED_AS, "lost")
"""What became of tokens."""

_SYNC_PHASES: Final = {"sync_paused": "pause", "sync_updated": "update", "sync_ended": "resume"}
"""What ends at each of these events."""


@dataclass(slots=True, kw_only=True, eq=False)
class Progress:
    """One episode as its events tell it."""

    episode: EpisodeId
    number: int
    """Place in the order of issue, from 0."""
    doing: Doing = Doing.QUEUED
    since: float
    """When it began to do that."""
    worker: str | None = None
    env: EnvState | None = None
    attempt: int = 0
    turns: int = 0
    """Turns of this attempt that were begun."""
    cut: bool = False
    """The last generation was cut short."""
    tokens: int = 0
    """Generated, in all attempts."""
    preemptions: int = 0
    interruptions: int = 0
    failed: str | None = None
    """Cause of a failure that the infrastructure caused."""
    ending: Mapping[str, Any] | None = None
    """What the event `ended` or `dropped` says."""
    dropped_as: str | None = None
    """What its tokens count as, where it was dropped."""


class Move(NamedTuple):
    """What one event changed of an episode."""

    event: EventRecord
    progress: Progress
    """As it is now."""
    before: Doing | None
    """None: it was not known."""
    since: float
    """When it had begun to do that."""
    env_before: EnvState | None


@dataclass(slots=True)
class RunState:
    """The fold. `apply` every event once, in order."""

    episodes: dict[EpisodeId, Progress] = field(default_factory=dict)
    doing: Counter[Doing] = field(default_factory=Counter)
    envs: Counter[EnvState] = field(default_factory=Counter)
    waits: dict[str, Histogram] = field(
        default_factory=lambda: {stage: Histogram() for stage in WAITS.values()}
    )
    """Seconds waited for each stage, by those who got it."""
    books: SlotBooks = field(default_factory=SlotBooks)
    tokens: Counter[str] = field(default_factory=Counter)
    """`received`, and `TOKEN_CAUSES` of episodes that ended, as they stood then."""
    ended: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By class and cause."""
    preemptions: Counter[str] = field(default_factory=Counter)
    """Generations cut short, by reason: `priority`, `weight_sync`."""
    sync_s: dict[str, Histogram] = field(
        default_factory=lambda: {phase: Histogram() for phase in _SYNC_PHASES.values()}
    )
    staleness: Histogram = field(default_factory=lambda: Histogram(VERSIONS))
    """Of ended samples: versions between the oldest that generated and the newest known."""
    version: int = 0
    """Newest weight version known."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """What `run_started` says: `planned`, limits, policy."""
    status: str | None = None
    """What `run_ended` says."""
    stalled: str | None = None
    """The message of a stall."""
    metrics_url: str | None = None
    syncing: str | None = None
    """Mode of the weight update under way."""
    updating: bool = False
    """Generations stand still, and the weights are being replaced."""
    last: float = 0.0
    """Time of the last event; 0 before the first."""
    began: float = 0.0
    events: int = 0
    _sync_since: float = 0.0

    def fold(self, events: Iterable[EventRecord]) -> None:
        """Apply every one of `events`."""
        for event in events:
            self.apply(event)

    def apply(self, event: EventRecord) -> Move | None:
        """Take one event in; says what it changed, where it is an episode's."""
        self.events += 1
        self.last = event.time
        if event.episode is None:
            self._apply_run(event)
            return None
        progress = self.episodes.get(event.episode)
        known = progress is not None
        if progress is None:
            progress = Progress(episode=event.episode, number=len(self.episodes), since=event.time)
            self.episodes[event.episode] = progress
        before, since, env = progress.doing if known else None, progress.since, progress.env
        self._note(progress, event)
        self._move(progress, before, event)
        return Move(event, progress, before, since, env)

    @property
    def open(self) -> int:
        """Episodes that were issued and have not ended."""
        return len(self.episodes) - self.doing[Doing.ENDED]

    @property
    def workers(self) -> Mapping[str, Mapping[str, Any]]:
        """Each worker's own limits, where the run tells them."""
        found: Mapping[str, Mapping[str, Any]] = self.run.get("workers", {})
        return found

    def waiting(self) -> dict[str, int]:
        """How many wait for each stage."""
        return {stage: self.doing[doing] for doing, stage in WAITS.items()}

    # --- inside -------------------------------------------------------------------------------

    def _move(self, progress: Progress, before: Doing | None, event: EventRecord) -> None:
        if before is Doing.ENDED and event.kind != "issued":
            return  # of a worker that had been given up, whose result comes too late
        now = event.time
        self._move_env(progress, event.kind)
        doing = after(event, failed=progress.failed is not None)
        if event.kind == "leased":
            progress.worker = str(event.facts["worker"])
        if doing is None or doing is before:
            doing = progress.doing
            if before is not None:
                return
        if before is not None:
            self.doing[before] -= 1
            if (before, doing) in SERVED:
                self.waits[WAITS[before]].add(now - progress.since)
        self.doing[doing] += 1
        self._move_slots(progress, before, doing, now)
        progress.doing, progress.since = doing, now
        if doing in _ELSEWHERE:
            progress.worker = None

    def _move_slots(
        self, progress: Progress, before: Doing | None, doing: Doing, now: float
    ) -> None:
        if progress.worker is not None:
            was = None if before in _ELSEWHERE else before
            self.books.move(progress.worker, was, None if doing in _ELSEWHERE else doing, now)

    def _move_env(self, progress: Progress, kind: str) -> None:
        env = _ENV_AFTER.get(kind, progress.env)
        if kind == "failed" and env is EnvState.STARTING:
            env = None
        if env is not progress.env:
            if progress.env is not None:
                self.envs[progress.env] -= 1
            if env is not None:
                self.envs[env] += 1
            progress.env = env

    def _note(self, progress: Progress, event: EventRecord) -> None:
        """Keep what the event says beside the move."""
        facts = event.facts
        match event.kind:
            case "issued":  # perhaps anew, after the trainer took the first of that name
                progress.ending, progress.dropped_as, progress.tokens = None, None, 0
            case "generation_started":
                progress.attempt = facts["attempt"]
                progress.turns += not progress.cut  # else it goes on in the same turn
                progress.cut = False
            case "generation_ended":
                self._note_generation(progress, facts)
            case "preempted":
                progress.preemptions += 1
                self.preemptions["priority"] += 1
            case "interrupted":
                progress.interruptions += 1
                self.preemptions["weight_sync"] += 1
            case "restarted_clean":
                progress.turns, progress.cut = 0, False
            case "failed":
                progress.failed = str(facts["cause"])
            case "leased":
                progress.failed = None
            case "ended" | "dropped" if progress.ending is None:
                progress.ending = facts
                self._note_end(progress, facts, dropped=event.kind == "dropped")
            case _:
                pass

    def _note_generation(self, progress: Progress, facts: Mapping[str, Any]) -> None:
        progress.cut = facts["status"] == StepStatus.ABORTED
        tokens = facts.get("tokens", 0)
        progress.tokens += tokens
        self.tokens["received"] += tokens
        if progress.ending is not None:  # it comes too late
            self.tokens[progress.dropped_as or "lost"] += tokens

    def _note_end(self, progress: Progress, facts: Mapping[str, Any], *, dropped: bool) -> None:
        cause = str(facts["cause"])
        if dropped:
            progress.dropped_as = cause if cause in _DROPPED_AS else "failed"
            self.ended["dropped", cause] += 1
            self.tokens[progress.dropped_as] += progress.tokens
            return
        self.ended[str(facts["status"]), cause] += 1
        told = {"failed" if facts["masked"] else "delivered": facts["generated"]}
        told |= {column: facts[column] for column in ("restarted", "stale", "forked")}
        self.tokens.update(told)
        # The rest died with a worker. Less may have been told: a generation that never ended.
        self.tokens["lost"] += max(0, progress.tokens - sum(told.values()))
        if facts["newest_version"] is not None:
            self.version = max(self.version, facts["newest_version"])
            self.staleness.add(self.version - facts["oldest_version"])

    def _apply_run(self, event: EventRecord) -> None:
        now, facts = event.time, event.facts
        match event.kind:
            case "run_started":
                self._start(event)
            case "sync_started":
                self.syncing, self._sync_since = str(facts["mode"]), now
                self.books.pause(paused=True, now=now)
            case "sync_paused" | "sync_updated" | "sync_ended":
                self.sync_s[_SYNC_PHASES[event.kind]].add(now - self._sync_since)
                self._sync_since = now
                self.updating = event.kind == "sync_paused"
                if event.kind == "sync_ended":
                    self.syncing = None
                    self.books.pause(paused=False, now=now)
            case "weights_updated":
                self.version = max(self.version, facts["version"])
            case "metrics_served":
                self.metrics_url = str(facts["url"])
            case "stalled":
                self.stalled = str(facts["message"])
            case "run_ended":
                self.status = str(facts["status"])
                self.books.settle(now)
            case _:
                pass

    def _start(self, event: EventRecord) -> None:
        """Begin, or begin again where a killed process left off: nothing of it is under way."""
        self.run, self.status, self.stalled, self.syncing = event.facts, None, None, None
        self.updating = False
        slots = {name: facts["generations"] for name, facts in self.workers.items()}
        otherwise = 0 if slots else event.facts.get("generations", 0)
        self.books.begin(slots, otherwise=otherwise, now=event.time)
        self.began = self.began or event.time
        for progress in self.episodes.values():
            if progress.doing not in _ELSEWHERE:
                self.doing[progress.doing] -= 1
                self.doing[Doing.QUEUED] += 1
                progress.doing, progress.since = Doing.QUEUED, event.time
                progress.worker = progress.env = None
        self.envs.clear()


_ELSEWHERE: Final = frozenset({Doing.QUEUED, Doing.INTERRUPTED, Doing.ENDED})
"""Not with a worker."""
