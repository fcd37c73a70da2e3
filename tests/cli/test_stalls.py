"""When a run counts as stalled: in virtual time, over events as a run would write them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from agentflow.config import AgentflowConfig, RolloutConfig
from agentflow.observe.jsonl import JsonlEvents
from agentflow.sim.clock import VirtualRunner, run_virtual
from agentflow.types import EpisodeId
from executors.agentic import RolloutStalled
from executors.watching.watch import Watch

if TYPE_CHECKING:
    from pathlib import Path

STALL_S = 100.0
Event = tuple[float, str, str | None, dict[str, Any]]
UNDER_WAY: list[Event] = [
    (0, "run_started", None, {"planned": 2}),
    (0, "issued", "a", {}),
    (0, "issued", "b", {}),
    (1, "leased", "a", {"worker": "w"}),
    (2, "env_starting", "a", {}),
]
SYNC = {"mode": "drain"}


async def watch(folder: Path, story: list[Event], *, held: bool, for_s: float) -> None:
    """Watch a run that writes the story, for so long. Raises TimeoutError when nothing stalls."""
    runner = VirtualRunner()
    events = JsonlEvents(folder / "events.jsonl", runner)
    config = AgentflowConfig(rollout=RolloutConfig(stall_s=STALL_S))
    watch = Watch(folder, events, runner=runner, config=config, held=held)

    async def write() -> None:
        for at, kind, uid, facts in story:
            await asyncio.sleep(at - runner.now())
            events.emit(kind, EpisodeId(uid=uid) if uid is not None else None, **facts)
        await asyncio.sleep(for_s)

    try:
        async with asyncio.timeout(for_s), asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            tasks.create_task(watch.run())
    finally:
        watch.close()
        events.close()


def stalls(folder: Path, story: list[Event], *, held: bool = False) -> str | None:
    """Run in virtual time; the message of the stall, or None."""
    try:
        run_virtual(watch(folder, story, held=held, for_s=10 * STALL_S))
    except TimeoutError:
        return None
    except ExceptionGroup as group:
        found = group.subgroup(RolloutStalled)
        assert found is not None
        error: BaseException = found
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        return str(error)
    raise AssertionError


def test_work_that_stands_still_is_a_stall_after_so_long(tmp_path: Path) -> None:
    """Who has not moved for longest is named first; a queued episode counts as well."""
    said = stalls(tmp_path, UNDER_WAY)
    assert said == (
        "nothing has happened for 108.0 s: b#0 queued for 110 s, a#0 starting for 108 s"
    )


def test_it_stands_in_the_events_for_whoever_looks_later(tmp_path: Path) -> None:
    """As the last of them; metrics went on until then."""
    stalls(tmp_path, UNDER_WAY)
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 11
    assert b'"stalled"' in (tmp_path / "events.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("story", "held"),
    [
        (UNDER_WAY[:1], False),
        ([*UNDER_WAY[:2], (3, "dropped", "a", {"cause": "surplus"})], False),
        (UNDER_WAY[:3], True),
        (
            [
                *UNDER_WAY,
                (3, "sync_started", None, {"mode": "drain"}),
                (4, "sync_paused", None, {}),
            ],
            True,
        ),
    ],
    ids=["nothing was issued", "all has ended", "a trainer holds prompts", "or the weights"],
)
def test_what_waits_for_somebody_else_is_no_stall(
    tmp_path: Path, story: list[Event], *, held: bool
) -> None:
    """However long it lasts."""
    assert stalls(tmp_path, story, held=held) is None


def test_a_weight_update_that_never_gets_its_pause_is_a_stall(tmp_path: Path) -> None:
    """Generations that do not end keep it waiting."""
    story = [*UNDER_WAY, (3, "sync_started", None, SYNC)]
    assert stalls(tmp_path, story, held=True) is not None
