"""TokenStream: the events of one generation to ids, log-probabilities and versions in a sink.

Pure: events in, tokens out. Works the same for cumulative and for incremental servers: an event
with n ids whose count so far is c covers tokens [c - n, c), so repeated events add nothing and a
missing one is noticed. Versions are exact: while the engine reports the version that the generation
began under, no token can be of another; once it reports a newer one, tokens are held back until the
last event says where the versions change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.engine.sglang.events import TokenEvent, events_of, newest, token_events
from agentflow.engine.sglang.versions import parse_version
from agentflow.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from agentflow.engine.sglang.events import Event, LogProb, Meta, VersionRange
    from agentflow.protocols import TokenSink


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEnd:
    """What the last event said."""

    reason: Mapping[str, Any]
    """`finish_reason` as received."""
    cached_tokens: int
    retractions: int


class TokenStream:
    """Accumulates one generation."""

    def __init__(self, sink: TokenSink, *, version: str) -> None:
        """`version` is the one the engine was last known to run, before the request was sent."""
        self._sink = sink
        self._version = version
        self._number = parse_version(version)
        self._cumulative = False
        self._held_ids: list[int] = []
        self._held_logprobs: list[float] = []
        self.reported = version
        """The version that the engine reported last."""
        self.seen = 0
        """Tokens received."""
        self.end: StreamEnd | None = None
        self.error: Any = None
        """The error that came instead of tokens."""

    def take(self, pieces: list[bytes]) -> None:
        """Take complete events in order. Raises EngineDied when they make no sense."""
        if self._cumulative:
            pieces = [newest(b"".join(pieces))]
        events = token_events(pieces)
        if events is None:
            self._take_each(events_of(b"".join(pieces)), pieces)
        elif (taken := self._take_plain(events)) < len(events):
            self._take_each(events[taken:], pieces)
        if self.end is not None:
            self.flush()

    def flush(self) -> None:
        """Give held tokens to the sink under the last version reported: no better one will come."""
        if self._held_ids:
            self._append(self._held_ids, self._held_logprobs, parse_version(self.reported))
            self._held_ids, self._held_logprobs = [], []

    def _take_plain(self, events: list[TokenEvent]) -> int:
        """Take the first events all at once, as long as they only add tokens; return how many.

        Nearly all events are of this kind.
        """
        seen, ids, pairs, taken = self.seen, [], [], 0
        for event in events:
            meta = event.meta_info
            seen += len(event.output_ids)
            if (
                meta.completion_tokens != seen
                or meta.weight_version != self.reported
                or meta.finish_reason is not None
            ):
                break
            ids += event.output_ids
            pairs += meta.output_token_logprobs
            taken += 1
        if self.end is not None or [pair.id for pair in pairs] != ids:
            return 0
        self.seen += len(ids)
        self._deliver(ids, [pair.logprob for pair in pairs])
        return taken

    def _take_each(self, events: Iterable[Event], pieces: list[bytes]) -> None:
        """Take events of any kind. Raises EngineDied at the first that makes no sense."""
        ids: list[int] = []
        logprobs: list[float] = []
        try:
            for event in events:
                self._take(event, ids, logprobs)
        except (msgspec.DecodeError, ValueError) as error:
            raise EngineDied(
                f"events {b''.join(pieces)[:120]!r} are not SGLang's /generate's ({error}), "
                f"after {self.seen} tokens"
            ) from error
        finally:
            if ids:
                self._deliver(ids, logprobs)

    def _take(self, event: Event, ids: list[int], logprobs: list[float]) -> None:
        if self.end is not None:
            return
        if not isinstance(event, TokenEvent):
            self.error = event.error
            return
        new, meta = event.output_ids, event.meta_info
        pairs = meta.output_token_logprobs
        if meta.completion_tokens != self.seen + len(new) or meta.weight_version != self.reported:
            new, pairs = self._unknown_of(new, meta)
            self._split_if_newer(meta.weight_version if new else self.reported, ids, logprobs)
        if [pair.id for pair in pairs] != new:
            raise ValueError(f"ids {new} with log-probs {pairs}")
        ids += new
        logprobs += [pair.logprob for pair in pairs]
        self.seen += len(new)
        if meta.finish_reason is not None:
            self._finish(meta, meta.finish_reason, ids, logprobs)

    def _unknown_of(self, new: list[int], meta: Meta) -> tuple[list[int], list[LogProb]]:
        """Leave out what came before, from a server or proxy that repeats itself."""
        pairs = meta.output_token_logprobs
        start = meta.completion_tokens - len(new)
        if len(pairs) > len(new) or start < 0:
            return self._unknown_of_record(new, meta)
        if start > self.seen:
            raise ValueError(f"tokens {self.seen} to {start} are missing")
        if self.seen and not start and meta.completion_tokens > self.seen:
            self._cumulative = True
        skip = self.seen - start
        return new[skip:], pairs[skip:]

    def _unknown_of_record(self, new: list[int], meta: Meta) -> tuple[list[int], list[LogProb]]:
        """Read how an incremental server ends what is aborted while it waits, retracted, to go on.

        Behind what it has not sent yet it repeats the last id, and the log-probs of all tokens.
        """
        pairs = meta.output_token_logprobs
        record = pairs[len(new) - 1 :]
        unsent = record[self.seen :]
        ids = [pair.id for pair in unsent]
        repeated = [pair.id for pair in record[-1:]]
        whole = len(record) == meta.completion_tokens >= self.seen
        if not whole or new != ids + repeated or pairs != unsent + record:
            raise ValueError(f"ids {new} with log-probs {pairs}, {meta.completion_tokens} in all")
        return ids, unsent

    def _split_if_newer(self, version: str, ids: list[int], logprobs: list[float]) -> None:
        """Deliver what came before a change of version apart from what comes after."""
        if version != self.reported:
            parse_version(version)
            self._deliver(ids, logprobs)
            ids.clear()
            logprobs.clear()
            self.reported = version

    def _finish(
        self, meta: Meta, reason: Mapping[str, Any], ids: list[int], logprobs: list[float]
    ) -> None:
        self.end = StreamEnd(
            reason=reason,
            cached_tokens=meta.cached_tokens or 0,
            retractions=meta.num_retractions or 0,
        )
        self._deliver(ids, logprobs)
        ids.clear()
        logprobs.clear()
        self._release(meta.weight_versions or [])
        self.reported = meta.weight_version

    def _deliver(self, ids: list[int], logprobs: list[float]) -> None:
        if self.reported == self._version:
            self._append(ids, logprobs, self._number)
        else:
            self._held_ids += ids
            self._held_logprobs += logprobs

    def _release(self, ranges: list[VersionRange]) -> None:
        """Give held tokens to the sink under the versions that the last event names."""
        first = self.seen - len(self._held_ids)
        for start, end, version in _parts(ranges):
            held = slice(max(start - first, 0), max(end - first, 0))
            self._append(self._held_ids[held], self._held_logprobs[held], version)
        covered = max(ranges[-1].end - first, 0) if ranges else 0
        del self._held_ids[:covered], self._held_logprobs[:covered]

    def _append(self, ids: list[int], logprobs: list[float], version: int) -> None:
        if ids:
            self._sink.append(ids, logprobs, version)


def _parts(ranges: list[VersionRange]) -> list[tuple[int, int, int]]:
    """Return start, end and version of each range. Raises ValueError where they overlap or gape."""
    last = 0
    for part in ranges:
        if part.start != last or part.end < last:
            raise ValueError(f"weight versions {ranges} do not follow each other from 0")
        last = part.end
    return [(part.start, part.end, parse_version(part.version)) for part in ranges]
