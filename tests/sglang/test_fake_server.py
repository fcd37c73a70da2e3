"""A fake server's bodies are those that a real one was seen to send."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support import MODEL

from agentflow.engine.fake_sglang import wire
from agentflow.engine.fake_sglang.scheduler import FakeRequest, FakeScheduler

WIRE = Path(__file__).parent / "wire"
TIMES = ("_ts", "_time", "_wait", "_latency", "_throughput")
"""How the names of fields end that tell moments and durations, which nobody reads."""


def play(end: str) -> FakeRequest:
    """Let a fake server decode one token of a request, and then `end` it."""
    scheduler = FakeScheduler(MODEL, slots=1, kv_tokens=4096, max_queued=None, version="default")
    request = FakeRequest(rid="r", prompt=[1, 2, 3], params={"max_new_tokens": 4})
    scheduler.submit(request)
    scheduler.step()
    if end == "abort_retracted":
        scheduler.pause("retract")
    if end.startswith("abort"):
        scheduler.abort("r")
    while not request.finished:
        scheduler.step()
    return request


def shape(event: dict[str, Any]) -> tuple[set[str], set[str], dict[str, Any]]:
    """Return the names of an event's fields, and how it says that it is the last one."""
    meta = event["meta_info"]
    reason = {k: v for k, v in (meta["finish_reason"] or {}).items() if k != "length"}
    return set(event), {name for name in meta if not name.endswith(TIMES)}, reason


@pytest.mark.parametrize(
    "name",
    ["stream_incremental", "stream_cumulative", "abort_incremental", "abort_retracted_incremental"],
)
def test_events_have_the_fields_of_a_real_servers(name: str) -> None:
    """All but times: the last event of each way to end, and the first of a stream."""
    end, _, mode = name.rpartition("_")
    observed = json.loads((WIRE / f"{name}.json").read_text())["events"][:-1]
    request = play(end)
    facts = {"text": "", "version": "default", "incremental": mode == "incremental"}
    last = wire.event(request, sent=1 if facts["incremental"] else 0, **facts)
    assert shape(last) == shape(observed[-1])
    if end == "stream":
        request.reason = None
        assert shape(wire.event(request, sent=0, **facts)) == shape(observed[0])


def test_contexts_that_outgrow_kv_are_retracted_and_come_to_the_same_tokens() -> None:
    """What finds no room waits; the newest gives way, goes on later and says the same."""

    def played(kv_tokens: int) -> tuple[list[FakeRequest], int]:
        scheduler = FakeScheduler(
            MODEL, slots=8, kv_tokens=kv_tokens, max_queued=None, version="default"
        )
        params = {"max_new_tokens": 30, "ignore_eos": True}
        requests = [
            FakeRequest(rid=str(i), prompt=list(range(i, i + 40)), params=params) for i in range(3)
        ]
        for request in requests:
            assert scheduler.submit(request)
        most = 0
        while not all(request.finished for request in requests):
            scheduler.step()
            most = max(most, sum(request.context for request in scheduler.running))
        return requests, most

    wide, narrow = played(4096), played(100)
    assert [r.output for r in narrow[0]] == [r.output for r in wide[0]]
    assert [r.retractions for r in wide[0]] == [0, 0, 0]
    assert [r.retractions > 0 for r in narrow[0]] == [False, True, True]
    assert narrow[1] <= 100 < wide[1]
    alone = played(50)  # none of them fits to its end
    assert [r.output for r in alone[0]] == [r.output for r in wide[0]]
