"""A trace of generation slots, for chrome://tracing and ui.perfetto.dev: a line a slot."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING, Any

import orjson

from agentflow.engine.rids import episode_key

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.rollout_meter import Held

_US = 1e6


def chrome_trace(stays: Sequence[Held], names: Mapping[str, str]) -> dict[str, Any]:
    """Return the trace of `stays`; `names` gives an episode's name by its key in a rid."""
    return {"displayTimeUnit": "ms", "traceEvents": [_event(stay, names) for stay in stays]}


def write_trace(path: Path, stays: Sequence[Held], names: Mapping[str, str]) -> None:
    """Write the trace, compressed as the viewers read it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(orjson.dumps(chrome_trace(stays, names)), mtime=0))


def _event(stay: Held, names: Mapping[str, str]) -> dict[str, Any]:
    return {
        "name": names.get(episode_key(stay.rid) or "", stay.rid),
        "ph": "X",
        "pid": 0,
        "tid": stay.slot,
        "ts": round(stay.start * _US),
        "dur": round((stay.end - stay.start) * _US),
        "args": {"rid": stay.rid, "cached": stay.cached, "tokens": stay.tokens},
    }
