"""RunTrace: a run's events as a picture: lanes of generation slots, environments and rewards.

    slots REPLICA    a lane for each generation under way
    environments     a lane for each environment; starts and commands are drawn inside its life
    rewards          a lane for each judge
    weight updates   their phases
    queues           how many wait for each stage

Pure: fed with events in order, it keeps what is under way and draws what has ended.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from agentflow.observe.doing import WAITS, Doing
from agentflow.observe.run_state import RunState
from agentflow.observe.trace import MAX_EVENTS, ChromeTrace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentflow.observe.records import EventRecord
    from agentflow.observe.run_state import Move
    from agentflow.types import EpisodeId

_QUEUES, _UPDATES = "queues", "weight updates"
_PHASES: Final = {"sync_paused": "pause", "sync_updated": "update", "sync_ended": "resume"}


class _Kind(StrEnum):
    """What has a lane."""

    SLOT = "slots"
    ENVIRONMENT = "environments"
    REWARD = "rewards"


class RunTrace:
    """`feed` it with the whole run or its end, then `close` and write `chunks`."""

    def __init__(self, *, limit: int = MAX_EVENTS) -> None:
        """`limit` as in ChromeTrace."""
        self._trace = ChromeTrace(limit=limit)
        self._state = RunState()
        self._lanes: dict[tuple[_Kind, EpisodeId], tuple[str, int, float]] = {}
        """Group, lane and beginning of what is under way."""
        self._sync_since: float | None = None

    def feed(self, events: Iterable[EventRecord]) -> None:
        """Take events in, in order."""
        for event in events:
            if event.kind == "run_started":
                self._cut(self._state.last)
            move = self._state.apply(event)
            if move is None:
                self._draw_update(event)
                continue
            if move.progress.doing is not move.before:
                self._end_doing(move)
                self._begin_doing(move)
                self._draw_queues(move)
            self._draw_environment(move)

    def close(self) -> None:
        """Draw what is still under way, up to the last event."""
        self._cut(self._state.last)

    def chunks(self) -> Iterator[bytes]:
        """Give the file, piece by piece."""
        return self._trace.chunks()

    # --- drawing ------------------------------------------------------------------------------

    def _end_doing(self, move: Move) -> None:
        progress, now, facts = move.progress, move.event.time, move.event.facts
        match move.before:
            case Doing.GENERATING:
                self._end_lane(
                    _Kind.SLOT,
                    progress.episode,
                    now,
                    turn=progress.turns,
                    attempt=progress.attempt,
                    tokens=facts.get("tokens", 0),
                    status=facts.get("status"),
                )
            case Doing.REWARDING:
                self._end_lane(_Kind.REWARD, progress.episode, now, reward=facts.get("reward"))
            case Doing.STARTING:
                self._draw_inside(move, "start")
            case Doing.COMMAND:
                self._draw_inside(move, "command")
            case _:
                pass

    def _begin_doing(self, move: Move) -> None:
        progress, now = move.progress, move.event.time
        if progress.doing is Doing.GENERATING:
            group = f"{_Kind.SLOT} {progress.worker or 'engine'}"
            self._begin_lane(_Kind.SLOT, progress.episode, now, group=group)
        elif progress.doing is Doing.REWARDING:
            self._begin_lane(_Kind.REWARD, progress.episode, now)

    def _draw_inside(self, move: Move, name: str) -> None:
        """Draw what ran in an environment into its lane."""
        begun = self._lanes.get((_Kind.ENVIRONMENT, move.progress.episode))
        if begun is not None:
            group, lane, _ = begun
            self._trace.slice(group, lane, name=name, begin=move.since, end=move.event.time)

    def _draw_environment(self, move: Move) -> None:
        episode, env, now = move.progress.episode, move.progress.env, move.event.time
        if move.env_before is None and env is not None:
            self._begin_lane(_Kind.ENVIRONMENT, episode, now)
        elif move.env_before is not None and env is None:
            self._end_lane(_Kind.ENVIRONMENT, episode, now)

    def _draw_queues(self, move: Move) -> None:
        for changed in (move.before, move.progress.doing):
            if changed in WAITS:
                depth = self._state.doing[changed]
                self._trace.counter(_QUEUES, name=WAITS[changed], at=move.event.time, value=depth)

    def _draw_update(self, event: EventRecord) -> None:
        if event.kind == "sync_started":
            self._sync_since = event.time
        elif event.kind in _PHASES and self._sync_since is not None:
            name = _PHASES[event.kind]
            self._trace.slice(_UPDATES, 0, name=name, begin=self._sync_since, end=event.time)
            self._sync_since = None if event.kind == "sync_ended" else event.time

    # --- lanes --------------------------------------------------------------------------------

    def _begin_lane(
        self, kind: _Kind, episode: EpisodeId, now: float, *, group: str | None = None
    ) -> None:
        group = group or str(kind)
        self._lanes[kind, episode] = (group, self._trace.take_lane(group), now)

    def _end_lane(self, kind: _Kind, episode: EpisodeId, now: float, **args: Any) -> None:
        begun = self._lanes.pop((kind, episode), None)
        if begun is not None:
            group, lane, began = begun
            self._trace.slice(group, lane, name=str(episode), begin=began, end=now, **args)
            self._trace.free_lane(group, lane)

    def _cut(self, now: float) -> None:
        for kind, episode in list(self._lanes):
            self._end_lane(kind, episode, now, status="cut short")
