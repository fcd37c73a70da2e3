"""The trace file: lanes, nesting, bounds, and what of a run is drawn."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING, Any

from stories import life, line, told

from agentflow.observe.run_trace import RunTrace
from agentflow.observe.trace import ChromeTrace

if TYPE_CHECKING:
    from agentflow.observe.records import EventRecord


def read(trace: ChromeTrace | RunTrace) -> dict[str, Any]:
    """Parse the file."""
    found: dict[str, Any] = json.loads(b"".join(trace.chunks()))
    return found


def drawn(file: dict[str, Any], phase: str = "X") -> list[tuple[str, int, str, float, float]]:
    """Slices as (group, lane, name, begin, duration) in seconds."""
    events = file["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    return [
        (groups[e["pid"]], e["tid"] - 1, e["name"], e["ts"] / 1e6, e.get("dur", 0) / 1e6)
        for e in events
        if e["ph"] == phase
    ]


def test_a_lane_is_the_lowest_free_one() -> None:
    """So that there are as many lanes as things at once."""
    trace = ChromeTrace()
    assert [trace.take_lane("g") for _ in range(3)] == [0, 1, 2]
    trace.free_lane("g", 2)
    trace.free_lane("g", 0)
    assert [trace.take_lane("g") for _ in range(3)] == [0, 2, 3]


def test_of_two_slices_that_begin_together_the_outer_one_comes_first() -> None:
    """A reader would drop it otherwise; the order of drawing does not matter."""
    trace = ChromeTrace()
    trace.slice("g", 0, name="inner", begin=5.0, end=6.0)
    trace.slice("g", 0, name="outer", begin=5.0, end=7.0)
    assert [name for _, _, name, _, _ in drawn(read(trace))] == ["outer", "inner"]


def test_slices_that_follow_each_other_touch_in_whole_microseconds() -> None:
    """No rounding lets one begin before the last one's end."""
    trace = ChromeTrace()
    ends = [0.1 + i * 1.1234567e-6 for i in range(200)]
    for begin, end in itertools.pairwise(ends):
        trace.slice("g", 0, name="s", begin=begin, end=end)
    records = [e for e in read(trace)["traceEvents"] if e["ph"] == "X"]
    for one, other in itertools.pairwise(records):
        assert one["ts"] + one["dur"] == other["ts"]
        assert isinstance(one["ts"], int)


def test_the_newest_are_kept_and_the_rest_is_counted() -> None:
    """A trace is a window that a viewer can open."""
    trace = ChromeTrace(limit=3)
    for second in range(10):
        trace.slice("g", 0, name=str(second), begin=second, end=second + 1)
    file = read(trace)
    assert [(name, begin) for _, _, name, begin, _ in drawn(file)] == [("7", 0), ("8", 1), ("9", 2)]
    assert file["otherData"] == {"forgotten": 7}


def run_trace(events: list[bytes]) -> RunTrace:
    """Draw events."""
    trace = RunTrace()
    records: list[EventRecord] = list(told(*events))
    trace.feed(records[:3])
    trace.feed(records[3:])
    trace.close()
    return trace


def test_a_run_is_drawn_in_lanes_of_slots_environments_and_rewards() -> None:
    """One episode's story, second by second."""
    events = [line(0, "run_started", planned=1, generations=1), *life("a", 0)]
    file = read(run_trace(events))
    assert sorted(drawn(file)) == [
        ("environments", 0, "a#0", 2.0, 6.0),
        ("environments", 0, "command", 6.0, 1.0),
        ("environments", 0, "start", 2.0, 1.0),
        ("rewards", 0, "a#0", 9.0, 1.0),
        ("slots w", 0, "a#0", 4.0, 1.0),
    ]


def test_the_depth_of_every_queue_is_drawn() -> None:
    """Up when somebody comes to wait, down when the wait ends."""
    file = read(run_trace([*life("a", 0), *life("b", 0)[:1]]))
    depths = [
        (e["ts"] / 1e6, e["args"]["value"])
        for e in file["traceEvents"]
        if e["ph"] == "C" and e["name"] == "admission"
    ]
    assert depths == [(0.0, 1), (1.0, 0), (11.0, 1)]


def test_what_is_under_way_at_the_end_is_drawn_as_cut_short() -> None:
    """As of a killed run, whose last events are all that there is."""
    file = read(run_trace([line(0, "run_started", generations=1), *life("a", 0)[:5]]))
    cut = [e for e in file["traceEvents"] if e["args"].get("status") == "cut short"]
    assert [e["name"] for e in cut] == ["a#0", "a#0"]


def test_a_weight_update_is_drawn_by_phase() -> None:
    """Pause, update, resume, end to end."""
    events = [
        line(0, "sync_started", mode="drain"),
        line(1, "sync_paused"),
        line(3, "sync_updated"),
        line(4, "sync_ended", mode="drain", ok=True),
    ]
    assert drawn(read(run_trace(events))) == [
        ("weight updates", 0, "pause", 0.0, 1.0),
        ("weight updates", 0, "update", 1.0, 2.0),
        ("weight updates", 0, "resume", 3.0, 1.0),
    ]
