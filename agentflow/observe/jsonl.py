"""JsonlEvents: the append-only event log of a run, one JSON object a line.

Owns a buffer and the file behind it. Emitting only appends to the buffer; it is written when it
holds `FLUSH_BYTES`, `FLUSH_S` after its first event, and on `close`. A write that fails is logged
and kept in `failure`, and nothing is written after it, so that the log is whole up to there.

A line is `{"t": …, "wall": …, "kind": …, "uid": …, "replica_index": …, facts…}`: `t` seconds of the
runner's monotonic clock, `wall` seconds since the epoch.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from pathlib import Path
    from typing import BinaryIO

    from agentflow.protocols import Runner
    from agentflow.types import EpisodeId

FLUSH_BYTES = 64 * 1024
"""One write of this size into the page cache takes some 50 µs, less than a scheduler's tick."""

FLUSH_S = 1.0
"""What a crash of the machine or a kill -9 may cost, in seconds of events."""

logger = logging.getLogger(__name__)


class JsonlEvents:
    """An `EventSink` that appends to a file; safe to call from several threads."""

    def __init__(self, path: Path, runner: Runner) -> None:
        """Nothing is opened before the first flush."""
        self._path = path
        self._now, self._wall_time = runner.now, runner.wall_time
        self._lock = threading.Lock()
        self._buffer = bytearray()
        self._timed = False
        """Whether a timer will flush it."""
        self._file: BinaryIO | None = None
        self._closed = False
        self.failure: OSError | None = None
        """The first write that failed; events after it are lost."""

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Buffer one event."""
        record: dict[str, Any] = {"t": self._now(), "wall": self._wall_time(), "kind": kind}
        if episode is not None:
            record["uid"], record["replica_index"] = episode
        record |= facts
        self._buffer += orjson.dumps(record, str, orjson.OPT_APPEND_NEWLINE)  # one step: no lock
        if len(self._buffer) >= FLUSH_BYTES:
            self.flush()
        elif not self._timed:
            self._flush_soon()

    def _flush_soon(self) -> None:
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # emitted outside of any loop, so that no timer would ring
            self.flush()
        else:
            self._timed = True
            loop.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._lock:
            self._timed = False  # first: what others add from here on gets a timer of its own
            self._write()

    def close(self) -> None:
        """Write what is buffered and close the file. Idempotent."""
        with self._lock:
            self._write()
            self._closed = True
            if self._file is not None:
                self._file.close()

    def _write(self) -> None:
        rest = memoryview(bytes(self._buffer))
        del self._buffer[: len(rest)]  # others may have added behind it
        if not rest or self._closed or self.failure is not None:
            return
        try:
            if self._file is None:
                self._file = self._path.open("ab", buffering=0)
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self.failure = error
            logger.warning("%s: events are lost from here on: %s", self._path, error.strerror)
