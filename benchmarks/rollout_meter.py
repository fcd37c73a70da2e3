"""SlotMeter: who held which generation slot when, from the events of a virtual run.

Listens where the engine and the flow speak; changes nothing. A slot is a lane: whoever is admitted
takes the lowest free one, as threads of a trace do.
"""

from __future__ import annotations

import asyncio
import heapq
from typing import TYPE_CHECKING, Any, NamedTuple

from agentflow.engine.rids import episode_key

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import EpisodeId


class Held(NamedTuple):
    """One request's stay in a slot; times in seconds."""

    slot: int
    start: float
    end: float
    rid: str
    cached: int
    """Prompt tokens whose KV was there."""
    tokens: int
    """Tokens that the request had generated when it left."""


class SlotMeter:
    """An `EventSink` that keeps stays in slots, waits and preemptions."""

    def __init__(self) -> None:
        self.stays: list[Held] = []
        self.longest_wait_s = 0.0
        """From an episode being ready to generate to a slot, at most."""
        self.preemptions = 0
        """Asked for by the flow; the engine counts its own."""
        self._ready: dict[str, float] = {}
        self._inside: dict[str, tuple[int, float, int]] = {}
        self._free: list[int] = []
        self._lanes = 0

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Take one event in."""
        if kind == "engine_admitted":
            self._admitted(facts["rid"], facts["cached"])
        elif kind in {"engine_ended", "engine_retracted", "engine_preempted"}:
            self._left(facts["rid"], facts["tokens"])
            if kind != "engine_ended":
                self._ready[episode_key(facts["rid"]) or ""] = _now()
        elif episode is not None and kind in {"env_started", "command_ended", "preempted"}:
            self._ready[episode.key] = _now()
            self.preemptions += kind == "preempted"

    def _admitted(self, rid: str, cached: int) -> None:
        now = _now()
        waited = now - self._ready.pop(episode_key(rid) or "", now)
        self.longest_wait_s = max(self.longest_wait_s, waited)
        if self._free:
            lane = heapq.heappop(self._free)
        else:
            lane, self._lanes = self._lanes, self._lanes + 1
        self._inside[rid] = lane, now, cached

    def _left(self, rid: str, tokens: int) -> None:
        held = self._inside.pop(rid, None)
        if held is None:
            return  # it ended while it waited
        lane, start, cached = held
        heapq.heappush(self._free, lane)
        self.stays.append(Held(lane, start, _now(), rid, cached, tokens))

    @property
    def slot_s(self) -> float:
        """Seconds of all stays together."""
        return sum(stay.end - stay.start for stay in self.stays)


def use_over_time(stays: Sequence[Held], *, until_s: float, points: int) -> list[float]:
    """Return the mean number of slots in use in each of `points` equal parts of the time."""
    width = until_s / points
    use = [0.0] * points
    for stay in stays:
        for part in range(int(stay.start / width), min(int(stay.end / width) + 1, points)):
            begin, end = max(stay.start, part * width), min(stay.end, (part + 1) * width)
            use[part] += (end - begin) / width
    return use


def _now() -> float:
    return asyncio.get_running_loop().time()
