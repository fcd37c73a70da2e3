"""A trace of generation slots, for chrome://tracing and ui.perfetto.dev: a line a slot."""

from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key
from agentflow.observe.trace import ChromeTrace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.rollout_meter import Held


def write_trace(path: Path, stays: Sequence[Held], names: Mapping[str, str]) -> None:
    """Write the trace of `stays`, compressed as the viewers read it.

    `names` gives an episode's name by its key in a rid.
    """
    trace = ChromeTrace()
    for stay in stays:
        name = names.get(episode_key(stay.rid) or "", stay.rid)
        facts = {"rid": stay.rid, "cached": stay.cached, "tokens": stay.tokens}
        trace.slice("slots", stay.slot, name=name, begin=stay.start, end=stay.end, **facts)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(b"".join(trace.chunks()), mtime=0))
