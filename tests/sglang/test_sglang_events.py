"""Bytes to events to tokens: linear, exact, and loud about nonsense."""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import Sink

from agentflow.engine.sglang.events import ErrorEvent, EventBuffer, events_of
from agentflow.engine.sglang.tokens import TokenStream
from agentflow.errors import EngineDied, EngineRejected

WIRE = Path(__file__).parent / "wire"


def event(
    ids: list[int], count: int, *, version: str = "default", reason: Any = None, **meta: Any
) -> bytes:
    """Return an event whose log-probs are minus the ids over a thousand."""
    whole = {
        "output_ids": ids,
        "meta_info": {
            "finish_reason": reason,
            "weight_version": version,
            "output_token_logprobs": [[-i / 1000, i, None] for i in ids],
            "completion_tokens": count,
            **meta,
        },
    }
    return json.dumps(whole).encode()


def pieces_of(*payloads: bytes) -> list[bytes]:
    """Return events as SGLang sends them, each a chunk of the body."""
    return [b"data: " + payload + b"\n\n" for payload in payloads]


def block(*payloads: bytes) -> bytes:
    """Return the bytes of events."""
    return b"".join(pieces_of(*payloads))


def cut(whole: bytes, cuts: list[int]) -> list[bytes]:
    """Return the pieces of `whole`, cut at `cuts`; none is empty."""
    ends = sorted({min(c, len(whole)) for c in [*cuts, len(whole)]})
    return [whole[start:end] for start, end in zip([0, *ends], ends, strict=False) if end > start]


def stream(version: str = "default") -> tuple[TokenStream, Sink]:
    """Return a stream and what it fills."""
    sink = Sink()
    return TokenStream(sink, version=version), sink


@given(
    payloads=st.lists(st.text(max_size=30), max_size=8),
    cuts=st.lists(st.integers(0, 400), max_size=12),
)
def test_events_survive_any_cut(payloads: list[str], cuts: list[int]) -> None:
    """However the bytes are cut, the same payloads come out in order."""
    whole = block(*(json.dumps({"error": p}).encode() for p in payloads))
    buffer, got = EventBuffer(), []
    for piece in cut(whole, cuts):
        got += events_of(b"".join(buffer.feed([piece])))
    assert got == [ErrorEvent(p) for p in payloads]
    assert buffer.pending == 0


@given(
    counts=st.lists(st.integers(1, 5), max_size=8),
    text=st.text(max_size=30),
    cuts=st.lists(st.integers(0, 2000), max_size=12),
    chunked=st.booleans(),
    reads=st.lists(st.integers(1, 4), max_size=12),
)
def test_tokens_survive_any_cut(
    *, counts: list[int], text: str, cuts: list[int], chunked: bool, reads: list[int]
) -> None:
    """However bytes are cut and read and whatever the text holds, every token comes out once."""
    ids = list(range(sum(counts)))
    ends = list(accumulate(counts))
    payloads = [event(ids[e - n : e], e, text=text) for n, e in zip(counts, ends, strict=True)]
    events = pieces_of(*payloads, b"[DONE]")
    chunks = list(accumulate(map(len, events))) if chunked else []
    pieces = cut(b"".join(events), cuts + chunks)
    buffer = EventBuffer()
    tokens, sink = stream()
    for count in [*reads, len(pieces)]:
        read, pieces = pieces[:count], pieces[count:]
        complete = buffer.feed(read) if read else []
        if complete:
            tokens.take(complete)
    assert buffer.pending == 0
    assert sink.ids == ids
    assert sink.logprobs == [-i / 1000 for i in ids]


def test_an_event_in_many_reads_comes_whole() -> None:
    """Nothing comes before the end of an event, and what is behind it waits."""
    buffer, payload = EventBuffer(), b"x" * 1000
    for number in range(1000):
        assert buffer.feed([payload]) == []
        assert buffer.pending == 1000 * (number + 1)
    assert [len(e) for e in buffer.feed([payload + b"\n", b"\n" + payload])] == [1_001_002]
    assert buffer.pending == 1000


def test_comments_and_other_fields_are_ignored() -> None:
    """A keep-alive comment and an event name do not disturb."""
    assert list(events_of(b': ping\n\nevent: x\ndata: {"error": 1}\n\ndata: [DONE]\n\n')) == [
        ErrorEvent(1)
    ]


def test_lines_of_one_event_are_joined() -> None:
    """The standard allows a value on several lines."""
    assert list(events_of(b'data: {"error":\ndata: [1, 2]}\n\ndata:{"error": 3}\n\n')) == [
        ErrorEvent([1, 2]),
        ErrorEvent(3),
    ]


@pytest.mark.parametrize(
    "name",
    [
        "stream_cumulative",
        "stream_incremental",
        "abort_incremental",
        "abort_retracted_incremental",
    ],
)
def test_observed_streams_are_read(name: str) -> None:
    """Events as a real server sent them give ids, log-probs and the end it reported."""
    observed = json.loads((WIRE / f"{name}.json").read_text())
    tokens, sink = stream()
    for payload in observed["events"]:
        tokens.take(pieces_of(json.dumps(payload).encode() if payload != "[DONE]" else b"[DONE]"))
    assert sink.ids == observed["ids"]
    assert len(sink.logprobs) == len(sink.ids)
    assert tokens.end is not None
    assert tokens.end.reason["type"] == observed["finish"]


LAST = {"type": "abort", "message": "Abort in waiting queue"}


def aborted_while_queued_again(*, sent: int, total: int) -> bytes:
    """Return the last event of tokens 0 to `total`, of which `sent` had been sent before."""
    every = [[-i / 1000, i, None] for i in range(total)]
    return event(
        [*range(sent, total), total - 1],
        total,
        reason=LAST,
        output_token_logprobs=[*every[sent:], *every],
    )


@pytest.mark.parametrize(("sent", "total"), [(3, 3), (1, 3), (0, 3), (1, 1), (0, 1)])
def test_an_abort_that_repeats_everything_adds_what_was_not_sent(sent: int, total: int) -> None:
    """The end of a retracted request repeats its last id and all its log-probs."""
    tokens, sink = stream()
    for token in range(sent):
        tokens.take(pieces_of(event([token], token + 1)))
    tokens.take(pieces_of(aborted_while_queued_again(sent=sent, total=total), b"[DONE]"))
    assert sink.ids == list(range(total))
    assert sink.logprobs == [-i / 1000 for i in range(total)]
    assert tokens.end is not None
    assert tokens.end.reason == LAST


@pytest.mark.parametrize(
    ("seen", "old", "new"),
    [
        (2, b"[2, 2]", b"[2, 1]"),  # the id repeated is not the last one
        (2, b"[2, 2]", b"[1, 2]"),  # the id not sent yet is another one
        (2, b'"completion_tokens": 3', b'"completion_tokens": 2'),
        (2, b"[-0.002, 2, null], [0.0", b"[-0.003, 2, null], [0.0"),  # log-probs that differ
        (1, b"[2, 2]", b"[2, 2]"),  # a token is missing
    ],
)
def test_an_end_that_repeats_something_else_is_nonsense(seen: int, old: bytes, new: bytes) -> None:
    """Nothing is guessed where ids and log-probs do not say the same."""
    tokens, sink = stream()
    tokens.take(pieces_of(event(list(range(seen)), seen)))
    payload = aborted_while_queued_again(sent=2, total=3)
    assert old in payload
    with pytest.raises(EngineDied, match="with log-probs"):
        tokens.take(pieces_of(payload.replace(old, new)))
    assert sink.ids == list(range(seen))


def test_cumulative_events_of_one_read_cost_one_parse() -> None:
    """Once a server is known to repeat itself, only the newest of several events is parsed."""
    tokens, sink = stream()
    tokens.take(pieces_of(event([1], 1)))
    tokens.take(pieces_of(event([1, 2], 2)))
    tokens.take(pieces_of(b"not looked at", event([1, 2, 3, 4], 4)))
    assert sink.ids == [1, 2, 3, 4]


def test_repeated_events_add_nothing() -> None:
    """A duplicate of an incremental event is not a token more."""
    tokens, sink = stream()
    one, two = event([5], 1), event([6, 7], 3)
    tokens.take(pieces_of(one, one, two))
    tokens.take(pieces_of(two))
    assert sink.ids == [5, 6, 7]


def test_ids_without_their_log_probs_end_it_where_they_are() -> None:
    """Of events that are read together, those before the one that is wrong add their tokens."""
    tokens, sink = stream()
    wrong = event([6], 2).replace(b"-0.006, 6", b"-0.006, 5")
    with pytest.raises(EngineDied, match=r"ids \[6\] with log-probs .*id=5.* after 1 tokens"):
        tokens.take(pieces_of(event([5], 1), wrong, event([7], 3)))
    assert sink.ids == [5]


def test_nothing_is_taken_behind_the_end() -> None:
    """Events after the last one add no token."""
    tokens, sink = stream()
    tokens.take(pieces_of(event([5], 1, reason={"type": "length"}), event([6], 2)))
    tokens.take(pieces_of(event([6], 2)))
    assert sink.ids == [5]


def test_a_missing_event_is_noticed() -> None:
    """Tokens that never came end the generation, and those before it stay."""
    tokens, sink = stream()
    with pytest.raises(EngineDied, match="tokens 1 to 3 are missing"):
        tokens.take(pieces_of(event([5], 1), event([8], 4)))
    assert sink.ids == [5]


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (b"{", "truncated"),
        (b"[]", "got `array`"),
        (b'{"output_ids": [1]}', "meta_info"),
        (event([5, 6, 7], 1), r"ids \[5, 6, 7\] with log-probs .*, 1 in all"),
        (event([2**31], 1), "Expected `int` <= 2147483647"),
        (event([1], 1).replace(b"-0.001", b"null"), "Expected `float`, got `null`"),
        (event([1], 1).replace(b"-0.001, 1", b"-0.001, 2"), r"ids \[1\] with log-probs .*id=2"),
        (event([1], 1).replace(b"[[-0.001, 1, null]]", b"[]"), r"ids \[1\] with log-probs \[\]"),
    ],
)
def test_nonsense_is_named(payload: bytes, what: str) -> None:
    """An event that is not SGLang's ends the generation with its beginning in the message."""
    tokens, sink = stream()
    with pytest.raises(EngineDied, match=what):
        tokens.take(pieces_of(payload))
    assert sink.ids == []


def test_versions_split_where_the_last_event_says() -> None:
    """Tokens after a reported update wait for the exact split, even where reports came late."""
    tokens, sink = stream("3")
    tokens.take(pieces_of(event([1, 2], 2, version="3")))
    assert sink.versions == [3, 3]
    tokens.take(pieces_of(event([3, 4, 5], 5, version="4")))
    assert sink.ids == [1, 2]
    ranges = [{"version": "3", "start": 0, "end": 3}, {"version": "4", "start": 3, "end": 6}]
    end = {"type": "length", "length": 6}
    tokens.take(pieces_of(event([6], 6, version="4", reason=end, weight_versions=ranges)))
    assert sink.ids == [1, 2, 3, 4, 5, 6]
    assert sink.versions == [3, 3, 3, 4, 4, 4]


@pytest.mark.parametrize(
    "ranges",
    [
        [("3", 0, 3), ("4", 2, 6)],
        [("3", 0, 2), ("4", 3, 6)],
        [("3", 1, 6)],
        [("3", 0, 5), ("4", 5, 3), ("4", 3, 6)],
        [("3", 0, 3), ("4", 3, 5), ("four", 5, 6)],
    ],
    ids=["overlap", "gap", "late", "backwards", "name"],
)
def test_ranges_that_make_no_sense_double_and_lose_no_token(
    ranges: list[tuple[str, int, int]],
) -> None:
    """Where the last event's ranges overlap, gape or have no number, it is an error."""
    tokens, sink = stream("3")
    tokens.take(pieces_of(event([1, 2, 3, 4, 5], 5, version="4")))
    told = [{"version": v, "start": start, "end": end} for v, start, end in ranges]
    last = event([6], 6, version="4", reason={"type": "length"}, weight_versions=told)
    with pytest.raises((EngineDied, EngineRejected), match="ersion"):
        tokens.take(pieces_of(last))
    tokens.flush()
    assert sink.ids == [1, 2, 3, 4, 5, 6]
    assert sink.versions == [4] * 6


def test_a_stale_belief_about_the_version_costs_nothing_but_a_wait() -> None:
    """A generation under a version that nobody told us of has exact versions in the end."""
    tokens, sink = stream("default")
    ranges = [{"version": "7", "start": 0, "end": 2}]
    tokens.take(pieces_of(event([1], 1, version="7")))
    tokens.take(
        pieces_of(event([2], 2, version="7", reason={"type": "length"}, weight_versions=ranges))
    )
    assert sink.versions == [7, 7]
    assert tokens.reported == "7"


def test_held_tokens_survive_a_broken_stream() -> None:
    """Without a last event, held tokens go to the sink under the version reported."""
    tokens, sink = stream("1")
    tokens.take(pieces_of(event([1], 1, version="2")))
    tokens.flush()
    assert (sink.ids, sink.versions) == ([1], [2])


def test_a_version_that_is_no_number_is_refused() -> None:
    """The message says how to name versions."""
    tokens, _ = stream()
    with pytest.raises(EngineRejected, match="'v-2' is not a whole number"):
        tokens.take(pieces_of(event([1], 1, version="v-2")))
