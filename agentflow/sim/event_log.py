"""EventLog: everything that happened in a virtual run, as lines that two runs can compare."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from agentflow.protocols import EventSink
    from agentflow.types import EpisodeId


class EventLog:
    """An `EventSink` that keeps one JSON line an event, or only their digest and counts."""

    def __init__(
        self, *, keep: bool = True, write: bool = True, watch: EventSink | None = None
    ) -> None:
        """`watch` hears every event as well; without `write` there are only the counts."""
        self._keep = keep
        self._write = keep or write
        self._watch = watch
        self._hash = hashlib.blake2b(digest_size=16)
        self.lines: list[bytes] = []
        self.counts: Counter[str] = Counter()

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Take one event, stamped with the loop's time."""
        self.counts[kind] += 1
        if self._watch is not None:
            self._watch.emit(kind, episode, **facts)
        if not self._write:
            return
        stamp: dict[str, Any] = {"t": asyncio.get_running_loop().time(), "kind": kind}
        if episode is not None:
            stamp |= {"uid": episode.uid, "replica_index": episode.replica_index}
        line = orjson.dumps({**stamp, **facts}, option=orjson.OPT_APPEND_NEWLINE)
        self._hash.update(line)
        if self._keep:
            self.lines.append(line)

    @property
    def digest(self) -> str:
        """32 hex digits; equal digests mean equal logs."""
        return self._hash.copy().hexdigest()
