"""The session's frames and the limits of stages, without an engine."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker import wire
from agentflow.swe.environment.docker.kept_output import KeptOutput
from agentflow.swe.environment.docker.limits import Stage
from agentflow.swe.environment.docker.owner import (
    EXPIRES_LABEL,
    OWNER_LABEL,
    is_alive,
    myself,
)
from agentflow.swe.environment.docker.sweep import is_abandoned

PAYLOADS = st.lists(st.binary(min_size=1, max_size=300), max_size=6)


@given(payloads=PAYLOADS, cuts=st.lists(st.integers(0, 3000), max_size=8))
def test_frames_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    """A stream of frames read in any pieces gives the payloads, in order."""
    stream = b"".join(map(wire.frame, payloads))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = wire.FrameReader()
    found = [
        payload
        for start, end in itertools.pairwise(edges)
        for payload in reader.feed(stream[start:end])
    ]
    assert found == payloads


@given(payload=st.binary(min_size=1, max_size=300), lost=st.integers(2, 400), left=st.binary())
def test_a_reader_that_joins_late_is_in_step(payload: bytes, lost: int, left: bytes) -> None:
    """What is left of a cut frame is dropped; the next frame is read."""
    reader = wire.FrameReader()
    stream = wire.frame(payload)[lost:] + left.replace(wire.END, b"")
    assert [found for found in reader.feed(stream) if found == payload] == []
    assert list(reader.feed(wire.frame(b"next"))) == [b"next"]


def test_a_nul_byte_is_refused_before_it_is_sent() -> None:
    """It would end the argument and shift all that follows."""
    command = wire.Command(argv=("a\0b",), cwd="/", timeout_s=1, head_bytes=1, tail_bytes=1)
    with pytest.raises(ValueError, match="NUL"):
        wire.run_request(1, command)


@given(parts=st.lists(st.binary(max_size=40)), head=st.integers(0, 30), tail=st.integers(0, 30))
def test_kept_output_is_head_and_tail(parts: list[bytes], head: int, tail: int) -> None:
    """Whatever the pieces, the first and the last bytes are kept, and all are counted."""
    kept = KeptOutput(head=head, tail=tail)
    for part in parts:
        kept.add(part)
    whole = b"".join(parts)
    rest = whole[head:]
    assert kept.value() == whole[:head] + (rest[-tail:] if tail else b"")
    assert kept.total == len(whole)


async def test_a_stage_serves_urgent_callers_first() -> None:
    """A judge that came last goes before starts that wait; the rest keep their order."""
    stage = Stage(1, AsyncioRunner())
    order: list[str] = []

    async def caller(name: str, *, urgent: bool = False) -> None:
        async with stage.slot(urgent=urgent):
            order.append(name)

    await stage.acquire()
    async with asyncio.TaskGroup() as group:
        for name in ("a", "b"):
            group.create_task(caller(name))
        group.create_task(caller("judge", urgent=True))
        await asyncio.sleep(0)
        assert stage.gauges()["waiting"] == 3
        stage.release()
    assert order == ["judge", "a", "b"]
    assert stage.gauges()["in_use"] == 0


async def test_a_cancelled_wait_gives_its_slot_on() -> None:
    """Also when the slot came in the same instant as the cancellation."""
    stage = Stage(1, AsyncioRunner())
    await stage.acquire()
    waiting = asyncio.ensure_future(stage.acquire())
    await asyncio.sleep(0)
    stage.release()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert stage.gauges()["in_use"] == 0
    other = asyncio.ensure_future(stage.acquire())
    await other
    queued = asyncio.ensure_future(stage.acquire())
    await asyncio.sleep(0)
    queued.cancel()
    with pytest.raises(asyncio.CancelledError):
        await queued
    stage.release()
    assert (stage.gauges()["in_use"], stage.gauges()["waiting"]) == (0, 0)


@pytest.mark.parametrize(
    ("alive", "leased", "expires", "abandoned"),
    [
        (True, False, 0, False),
        (False, False, 1 << 40, True),
        (False, True, 0, False),
        (None, False, 1 << 40, False),
        (None, False, 5, True),
        (None, True, 5, False),
    ],
)
def test_who_may_be_swept(
    *, alive: bool | None, leased: bool, expires: int, abandoned: bool
) -> None:
    """Only what a dead owner left unleased, or a stranger left past its time."""
    labels = {OWNER_LABEL: "o", EXPIRES_LABEL: str(expires)}
    found = is_abandoned("c", labels, now=100.0, leased=lambda _: leased, alive=lambda _: alive)
    assert found is abandoned


def test_owners_are_judged_only_from_their_own_place() -> None:
    """This process lives, its successor of the same pid does not, a stranger is unknown."""
    assert is_alive(myself()) is True
    place, _, _start = myself().rpartition("/")
    assert is_alive(f"{place}/1") is False
    assert is_alive("elsewhere/1/2/3") is None
    assert is_alive("") is None
