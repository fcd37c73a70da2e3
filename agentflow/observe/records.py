"""EventFile: the events of a run, read from its events.jsonl, also while it is being written.

Owns how far the file has been read and the one clock of what it gives: seconds since the epoch that
never run backwards. Within a process they advance with its monotonic clock; a run that is resumed
begins anew at its wall time. Reads only; a line that is cut short is left for the next look.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentflow.types import EpisodeId

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

_CHUNK = 1 << 20
"""Bytes read at a time."""


class EventRecord(NamedTuple):
    """One thing that happened."""

    time: float
    """Seconds since the epoch (since the start, in virtual time)."""
    kind: str
    episode: EpisodeId | None
    facts: Mapping[str, Any]
    """The whole line; what it has depends on `kind`."""


class EventReader:
    """Lines to records, in order."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, int], EpisodeId] = {}
        self._offset: float | None = None
        self._last = float("-inf")
        self.torn = 0
        """Lines that are no event: a killed process may have left half of one."""

    def read(self, lines: Iterable[bytes]) -> Iterator[EventRecord]:
        """Parse `lines`, in the order in which they were written."""
        for line in lines:
            try:
                facts = orjson.loads(line)
                yield self._record(facts)
            except (orjson.JSONDecodeError, KeyError, TypeError):
                self.torn += 1

    def time_of(self, t: float) -> float:
        """Give a process's monotonic `t` as the time of an event that it would emit then."""
        return t + (self._offset or 0.0)

    def _record(self, facts: dict[str, Any]) -> EventRecord:
        kind: str = facts["kind"]
        t: float = facts["t"]
        if self._offset is None or kind == "run_started":
            self._offset = facts.get("wall", t) - t
        # two threads may write in another order than that in which they looked at the clock
        self._last = time = max(t + self._offset, self._last)
        episode = None
        if (uid := facts.get("uid")) is not None:
            name = (uid, facts["replica_index"])
            episode = self._episodes.get(name)
            if episode is None:
                episode = self._episodes[name] = EpisodeId(uid=name[0], replica_index=name[1])
        return EventRecord(time, kind, episode, facts)


class EventFile:
    """An events.jsonl that may grow."""

    def __init__(self, path: Path) -> None:
        """The file need not exist yet."""
        self._path = path
        self._reader = EventReader()
        self._read = 0
        self._rest = b""

    @property
    def torn(self) -> int:
        """Lines that are no event."""
        return self._reader.torn

    def time_of(self, t: float) -> float:
        """Give the writing process's monotonic `t` as a time of the events here."""
        return self._reader.time_of(t)

    def new(self) -> Iterator[EventRecord]:
        """Give what has been written since the last call. Raises OSError."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._read)
            while chunk := file.read(_CHUNK):
                self._read += len(chunk)
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                yield from self._reader.read(lines)
