"""ChromeTrace: lanes of slices and counters, in the format that Perfetto and Chrome open.

Owns the lanes: a group is a process of the trace, and what is under way in a group gets its lowest
free lane, a thread. Times are seconds; the file has whole microseconds, so that slices that follow
each other touch and never overlap, which readers would drop. Bounded: of more than `limit`
slices and counter values the oldest are forgotten, and the file says how many.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MAX_EVENTS = 500_000
"""A trace of this size is some 80 MB; viewers in a browser become slow beyond."""


class _Event(NamedTuple):
    time: float
    name: str
    group: int
    lane: int
    end: float | None
    """None is a counter."""
    args: Mapping[str, Any]


@dataclass(slots=True)
class _Group:
    number: int
    free: list[int] = field(default_factory=list)
    lanes: int = 0


class ChromeTrace:
    """A trace that is being made."""

    def __init__(self, *, limit: int = MAX_EVENTS) -> None:
        """`limit` is the number of slices and counter values that are kept, the newest."""
        self._events: deque[_Event] = deque(maxlen=limit)
        self._groups: dict[str, _Group] = {}
        self._added = 0

    @property
    def forgotten(self) -> int:
        """Slices and counter values that were too many."""
        return self._added - len(self._events)

    def take_lane(self, group: str) -> int:
        """Take the lowest free lane of `group`."""
        of = self._group(group)
        if of.free:
            return heapq.heappop(of.free)
        of.lanes += 1
        return of.lanes - 1

    def free_lane(self, group: str, lane: int) -> None:
        """Give a lane back."""
        heapq.heappush(self._group(group).free, lane)

    def slice(
        self, group: str, lane: int, *, name: str, begin: float, end: float, **args: Any
    ) -> None:
        """Draw a slice; one that lies within another of its lane is drawn below it."""
        of = self._group(group)
        of.lanes = max(of.lanes, lane + 1)
        self._add(_Event(begin, name, of.number, lane, max(end, begin), args))

    def counter(self, group: str, *, name: str, at: float, value: float) -> None:
        """Draw a value that holds from `at` on."""
        self._add(_Event(at, name, self._group(group).number, 0, None, {"value": value}))

    def chunks(self) -> Iterator[bytes]:
        """Give the file, piece by piece; times begin at its first event."""
        origin = min((event.time for event in self._events), default=0.0)
        drawn = sorted((_drawn(event, origin) for event in self._events), key=itemgetter(0))
        yield b'{"displayTimeUnit":"ms","otherData":{"forgotten":%d},' % self.forgotten
        yield b'"traceEvents":['
        before = b"\n"
        for record in (*self._names(), *(record for _, record in drawn)):
            yield before + orjson.dumps(record)
            before = b",\n"
        yield b"\n]}\n"

    def _add(self, event: _Event) -> None:
        self._added += 1
        self._events.append(event)

    def _group(self, name: str) -> _Group:
        if name not in self._groups:
            self._groups[name] = _Group(len(self._groups) + 1)
        return self._groups[name]

    def _names(self) -> Iterator[dict[str, Any]]:
        for name, group in self._groups.items():
            yield _metadata("process_name", group.number, 0, {"name": name})
            yield _metadata("process_sort_index", group.number, 0, {"sort_index": group.number})
            for lane in range(group.lanes):
                yield _metadata("thread_name", group.number, lane, {"name": f"{name} {lane}"})


def _drawn(event: _Event, origin: float) -> tuple[tuple[int, int], dict[str, Any]]:
    """Give a record and its place: of two that begin together, a reader must meet the outer first.

    Lanes do not matter to the place.
    """
    at = round((event.time - origin) * 1e6)
    record = {
        "name": event.name,
        "pid": event.group,
        "tid": event.lane + 1,
        "ts": at,
        "args": event.args,
    }
    if event.end is None:
        return (at, 0), {"ph": "C", **record}
    duration = round((event.end - origin) * 1e6) - at
    return (at, -duration), {"ph": "X", "dur": duration, **record}


def _metadata(name: str, group: int, lane: int, args: Mapping[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": group, "tid": lane + 1, "args": args}
