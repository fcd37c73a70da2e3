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

from agentflow.engine.sglang.events import newest, values
from agentflow.engine.sglang.versions import parse_version
from agentflow.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import Mapping

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
        self.error: Mapping[str, Any] | None = None
        """An event that was an error instead of tokens."""

    def take(self, block: bytes) -> None:
        """Take complete events in order. Raises EngineDied when they make no sense."""
        if self._cumulative:
            block = newest(block)
        ids: list[int] = []
        logprobs: list[float] = []
        try:
            for event in values(block):
                if not self._take_plain(event, ids, logprobs):
                    self._take_any(event, ids, logprobs)
        except (AttributeError, KeyError, TypeError, IndexError, ValueError) as error:
            raise EngineDied(
                f"events {block[:120]!r} are not SGLang's /generate's "
                f"({type(error).__name__}: {error}), after {self.seen} tokens"
            ) from error
        finally:
            if ids:
                self._deliver(ids, logprobs)
        if self.end is not None:
            self.flush()

    def flush(self) -> None:
        """Give held tokens to the sink under the last version reported: no better one will come."""
        if self._held_ids:
            self._append(self._held_ids, self._held_logprobs, parse_version(self.reported))
            self._held_ids, self._held_logprobs = [], []

    def _take_plain(self, event: Any, ids: list[int], logprobs: list[float]) -> bool:
        """Take the usual event of an incremental server; False, and nothing done, for others."""
        meta = event.get("meta_info")
        if (
            meta is None
            or meta["finish_reason"] is not None
            or meta["weight_version"] != self.reported
            or self.end is not None
        ):
            return False
        new, pairs = event["output_ids"], meta["output_token_logprobs"]
        count = self.seen + len(new)
        if meta["completion_tokens"] != count or [pair[1] for pair in pairs] != new:
            return False
        ids += new
        logprobs += [pair[0] for pair in pairs]
        self.seen = count
        return True

    def _take_any(self, event: Any, ids: list[int], logprobs: list[float]) -> None:
        if self.end is not None:
            return
        if "error" in event:
            self.error = event
            return
        self._add(event["output_ids"], event["meta_info"], ids, logprobs)

    def _add(
        self, new: list[int], meta: dict[str, Any], ids: list[int], logprobs: list[float]
    ) -> None:
        count: int = meta["completion_tokens"]
        start = count - len(new)
        if start > self.seen:
            raise ValueError(f"tokens {self.seen} to {start} are missing")
        if self.seen and not start and count > self.seen:
            self._cumulative = True
        skip = self.seen - start
        if skip < len(new):
            fresh = new[skip:] if skip else new
            pairs = meta["output_token_logprobs"]
            if len(pairs) != len(new):
                raise ValueError(f"{len(new)} ids with {len(pairs)} logprobs")
            if skip:
                pairs = pairs[skip:]
            if [pair[1] for pair in pairs] != fresh:
                raise ValueError("the logprobs are those of other ids")
            self._split_if_newer(meta["weight_version"], ids, logprobs)
            ids += fresh
            logprobs += [pair[0] for pair in pairs]
            self.seen = count
        reason = meta["finish_reason"]
        if reason is not None:
            self._finish(meta, ids, logprobs)

    def _split_if_newer(self, version: str, ids: list[int], logprobs: list[float]) -> None:
        """Deliver what came before a change of version apart from what comes after."""
        if version != self.reported:
            parse_version(version)
            self._deliver(ids, logprobs)
            ids.clear()
            logprobs.clear()
            self.reported = version

    def _finish(self, meta: dict[str, Any], ids: list[int], logprobs: list[float]) -> None:
        self.end = StreamEnd(
            reason=meta["finish_reason"],
            cached_tokens=meta.get("cached_tokens") or 0,
            retractions=meta.get("num_retractions") or 0,
        )
        self._deliver(ids, logprobs)
        ids.clear()
        logprobs.clear()
        self._release(meta.get("weight_versions") or [])
        self.reported = meta.get("weight_version", self.reported)

    def _deliver(self, ids: list[int], logprobs: list[float]) -> None:
        if self.reported == self._version:
            self._append(ids, logprobs, self._number)
        else:
            self._held_ids += ids
            self._held_logprobs += logprobs

    def _release(self, ranges: list[dict[str, Any]]) -> None:
        """Give held tokens to the sink under the versions that the last event names."""
        first = self.seen - len(self._held_ids)
        for part in ranges:
            start, end = max(part["start"] - first, 0), part["end"] - first
            if end > start:
                held = self._held_ids[start:end], self._held_logprobs[start:end]
                self._append(*held, parse_version(part["version"]))
        covered = max((part["end"] for part in ranges), default=0) - first
        if covered > 0:
            del self._held_ids[:covered], self._held_logprobs[:covered]

    def _append(self, ids: list[int], logprobs: list[float], version: int) -> None:
        if ids:
            self._sink.append(ids, logprobs, version)
