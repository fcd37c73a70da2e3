"""Events by hand: what a run would have written, with times that a test can reckon with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentflow.observe.records import EventReader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentflow.observe.records import EventRecord

ENDED = {
    "cause": "submitted",
    "status": "resolved",
    "masked": False,
    "reward": 1.0,
    "turns": 1,
    "generated": 0,
    "restarted": 0,
    "stale": 0,
    "forked": 0,
    "oldest_version": None,
    "newest_version": None,
}


def line(t: float, kind: str, name: str | None = None, **facts: Any) -> bytes:
    """One line of events.jsonl; `name` is `uid` or `uid#replica_index`."""
    stamp: dict[str, Any] = {"t": t, "kind": kind}
    if name is not None:
        uid, _, index = name.partition("#")
        stamp |= {"uid": uid, "replica_index": int(index or 0)}
    return orjson.dumps({**stamp, **facts})


def told(*lines: bytes) -> Iterator[EventRecord]:
    """Read lines."""
    return EventReader().read(lines)


def life(name: str, at: float, *, tokens: int = 5, command: bool = True) -> list[bytes]:
    """An episode from its issue at `at`; every step takes a second, every wait one as well."""
    lines = [
        line(at, "issued", name),
        line(at + 1, "leased", name, worker="w"),
        line(at + 2, "env_starting", name),
        line(at + 3, "env_started", name),
        line(at + 4, "generation_started", name, attempt=0),
        line(at + 5, "generation_ended", name, status="needs_env_step", tokens=tokens),
    ]
    if command:
        lines += [
            line(at + 6, "command_started", name),
            line(at + 7, "command_ended", name, status="terminated"),
        ]
    return [
        *lines,
        line(at + 8, "env_stopped", name),
        line(at + 9, "reward_started", name),
        line(at + 10, "reward_ended", name, reward=1.0),
        line(at + 11, "ended", name, **{**ENDED, "generated": tokens}),
    ]
