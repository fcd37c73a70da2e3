"""TokenStream: the events of one generation to ids, log-probabilities and versions in a sink.

Pure: payloads in, tokens out. Works the same for cumulative and for incremental servers: an event
with n ids whose count so far is c covers tokens [c - n, c), so repeated events add nothing and a
missing one is noticed. Versions are exact: while the engine reports the version that the generation
began under, no token can be of another; once it reports a newer one, tokens are held back until the
last event says where the versions change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from agentflow.engine.sglang.versions import parse_version
from agentflow.errors import EngineDied

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.protocols import TokenSink

DONE = b"[DONE]"


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

    def take(self, payloads: Sequence[bytes]) -> None:
        """Take complete events in order. Raises EngineDied when they make no sense."""
        if self._cumulative and len(payloads) > 1:
            payloads = self._newest(payloads)
        ids: list[int] = []
        logprobs: list[float] = []
        try:
            for payload in payloads:
                if payload != DONE and self.end is None:
                    self._take_event(payload, ids, logprobs)
        finally:
            self._deliver(ids, logprobs)
        if self.end is not None:
            self.flush()

    def flush(self) -> None:
        """Give held tokens to the sink under the last version reported: no better one will come."""
        if self._held_ids:
            self._append(self._held_ids, self._held_logprobs, parse_version(self.reported))
            self._held_ids, self._held_logprobs = [], []

    @staticmethod
    def _newest(payloads: Sequence[bytes]) -> Sequence[bytes]:
        """Each cumulative event repeats those before it: the last is enough."""
        last = len(payloads) - 1
        if payloads[last] == DONE:
            last -= 1
        return payloads[max(last, 0) :]

    def _take_event(self, payload: bytes, ids: list[int], logprobs: list[float]) -> None:
        try:
            event = orjson.loads(payload)
            if "error" in event:
                self.error = event
                return
            self._add(event["output_ids"], event["meta_info"], ids, logprobs)
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError, IndexError) as error:
            raise EngineDied(
                f"event {payload[:120]!r} is not one of SGLang's /generate "
                f"({type(error).__name__}: {error}), after {self.seen} tokens"
            ) from error

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
