"""The fold over events: what episodes do, how long they waited, why slots stood idle."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from stories import ENDED, life, line, told

from agentflow.observe.doing import Doing
from agentflow.observe.figures import figures, flat
from agentflow.observe.records import EventFile
from agentflow.observe.run_state import EnvState, RunState
from agentflow.observe.slots import Idle
from agentflow.types import EpisodeId

if TYPE_CHECKING:
    from pathlib import Path

STARTED = line(0, "run_started", planned=2, generations=2)


def fold(*lines: bytes) -> RunState:
    """Fold lines."""
    state = RunState()
    state.fold(told(*lines))
    return state


def test_an_episode_is_followed_through_its_life() -> None:
    """After each event it does what the event says, and since then."""
    state, seen = RunState(), []
    for event in told(STARTED, *life("a", 0)):
        state.apply(event)
        seen += [progress.doing for progress in state.episodes.values()]
    assert seen == [
        Doing.QUEUED,
        Doing.WAITS_START,
        Doing.STARTING,
        Doing.WAITS_GENERATION,
        Doing.GENERATING,
        Doing.WAITS_COMMAND,
        Doing.COMMAND,
        Doing.ENDING,
        Doing.WAITS_REWARD,
        Doing.REWARDING,
        Doing.ENDING,
        Doing.ENDED,
    ]
    assert (state.open, state.ended) == (0, {("resolved", "submitted"): 1})


def test_who_waited_and_for_how_long_is_counted_when_the_wait_ends() -> None:
    """One second before each stage, in the story; who still waits is in the depth instead."""
    state = fold(STARTED, *life("a", 0), *life("b", 20)[:4])
    assert {s: (w.count, w.sum) for s, w in state.waits.items()} == {
        "admission": (2, 2.0),
        "start": (2, 2.0),
        "generation": (1, 1.0),
        "command": (1, 1.0),
        "reward": (1, 1.0),
    }
    assert state.waiting()["generation"] == 1
    assert state.envs == {EnvState.STARTING: 0, EnvState.RUNNING: 1}


def test_every_idle_slot_has_a_reason_at_every_moment() -> None:
    """Two slots, one episode: busy and idle add up to both, for as long as it was there."""
    state = fold(STARTED, *life("a", 0))
    state.books.settle(20)
    (slots,) = state.books.replicas.values()
    assert slots.busy_s == 1.0
    assert slots.idle_s == {
        Idle.WEIGHT_SYNC: 0.0,
        Idle.DISPATCH: 1.0,  # second 3 to 4
        Idle.COMMAND: 2.0,  # 5 to 7, waiting for it included
        Idle.START: 2.0,  # 1 to 3
        Idle.NO_EPISODE: 2 * 19 - 6.0,
    }


def test_a_look_into_the_future_counts_no_second_twice() -> None:
    """Events come later than they happened; who looks in between sees a moment ahead."""
    events = list(told(STARTED, *life("a", 0)))
    state = RunState()
    state.fold(events[:6])
    state.books.settle(5.5)
    state.fold(events[6:])
    state.books.settle(20)
    (slots,) = state.books.replicas.values()
    assert slots.busy_s + sum(slots.idle_s.values()) == 2 * 19


def test_a_weight_update_is_the_reason_while_it_lasts() -> None:
    """Its phases are counted, and an aborted generation goes on in the same turn."""
    story = life("a", 0)[:5]
    state = fold(
        STARTED,
        *story,
        line(5, "sync_started", mode="abort"),
        line(6, "generation_ended", "a", status="aborted", tokens=3),
        line(6, "env_detached", "a"),
        line(6, "interrupted", "a"),
        line(7, "sync_paused"),
        line(9, "sync_updated"),
        line(10, "sync_ended", mode="abort", ok=True),
        line(10, "leased", "a", worker="w"),
        line(10, "resumed", "a", attempt=1),
        line(11, "generation_started", "a", attempt=1),
    )
    assert {phase: h.sum for phase, h in state.sync_s.items()} == {
        "pause": 2.0,
        "update": 2.0,
        "resume": 1.0,
    }
    (slots,) = state.books.replicas.values()
    assert slots.idle_s[Idle.WEIGHT_SYNC] == 1 * 1 + 2 * 4
    progress = state.episodes[EpisodeId(uid="a")]
    assert (progress.turns, progress.attempt, progress.tokens) == (1, 1, 3)
    assert state.preemptions == {"weight_sync": 1}
    assert state.envs[EnvState.RUNNING] == 1


def test_a_preempted_generation_waits_again_in_the_same_turn() -> None:
    """It counts by its reason, and its turn is no new one."""
    state = fold(
        STARTED,
        *life("a", 0)[:5],
        line(5, "generation_ended", "a", status="aborted", tokens=2),
        line(5, "preempted", "a", preemptions=1),
        line(6, "generation_started", "a", attempt=0),
    )
    progress = state.episodes[EpisodeId(uid="a")]
    assert (progress.doing, progress.turns, progress.preemptions) == (Doing.GENERATING, 1, 1)
    assert (state.preemptions, state.waits["generation"].count) == ({"priority": 1}, 2)


def test_an_environment_that_does_not_start_is_none() -> None:
    """The episode failed, and the start is not counted for ever."""
    state = fold(
        STARTED, *life("a", 0)[:3], line(3, "failed", "a", cause="env_start_failed", message="")
    )
    assert state.envs[EnvState.STARTING] == 0
    assert state.episodes[EpisodeId(uid="a")].doing is Doing.ENDING


def test_what_a_lost_worker_still_does_changes_nothing_any_more() -> None:
    """An ended episode stays so; tokens that came too late are received, and lost."""
    state = fold(
        STARTED,
        *life("a", 0),
        line(12, "env_starting", "a"),
        line(13, "generation_started", "a", attempt=0),
        line(14, "generation_ended", "a", status="terminated", tokens=7),
    )
    assert (state.open, state.envs[EnvState.STARTING]) == (0, 0)
    assert (state.tokens["received"], state.tokens["lost"]) == (5 + 7, 7)


def test_tokens_that_an_ended_sample_does_not_tell_of_were_lost_with_a_worker() -> None:
    """Its first worker was given up; the result is the second one's."""
    state = fold(
        STARTED,
        *life("a", 0)[:6],
        line(6, "given_back", "a"),
        *life("a", 6)[1:],
    )
    assert state.tokens["received"] == state.tokens["delivered"] + state.tokens["lost"] == 10
    assert state.tokens["lost"] == 5


def test_tokens_of_a_dropped_episode_count_by_why_it_was_dropped() -> None:
    """Also those that come after the drop."""
    state = fold(
        STARTED,
        *life("a", 0)[:5],
        line(5, "dropped", "a", cause="surplus"),
        line(6, "generation_ended", "a", status="aborted", tokens=4),
        *life("b", 10)[:6],
        line(16, "dropped", "b", cause="cancelled"),
    )
    assert state.tokens == {"received": 9, "surplus": 4, "failed": 5}
    assert state.ended == {("dropped", "surplus"): 1, ("dropped", "cancelled"): 1}


def test_staleness_is_counted_from_the_newest_version_known() -> None:
    """A sample of version 1 is two behind when the weights are version 3."""
    state = fold(
        STARTED,
        line(1, "weights_updated", version=3),
        line(2, "ended", "a", **{**ENDED, "oldest_version": 1, "newest_version": 2}),
    )
    assert (state.staleness.count, state.staleness.sum, state.version) == (1, 2.0, 3)


def test_a_run_that_goes_on_in_another_process_has_nothing_under_way() -> None:
    """What was open is queued again; the dead time between is nobody's."""
    state = fold(
        STARTED,
        *life("a", 0)[:5],
        line(0, "run_started", planned=2, generations=2, wall=100.0),
        *life("a", 1)[1:],
        *life("b", 20),
    )
    assert (state.open, state.ended["resolved", "submitted"]) == (0, 2)
    assert state.envs.total() == 0
    (slots,) = state.books.replicas.values()
    assert slots.busy_s == 2.0


def test_a_replica_that_a_run_goes_on_without_has_no_slots() -> None:
    """It was killed with two servers and is resumed with one: nothing idles where nothing is."""
    two = {name: {"generations": 2} for name in ("replica-0", "replica-1")}
    state = fold(
        line(0, "run_started", planned=1, generations=4, workers=two),
        line(0, "issued", "a"),
        line(0, "leased", "a", worker="replica-1"),
        line(1, "run_started", planned=1, generations=4, workers={"local": {"generations": 4}}),
        line(1, "leased", "a", worker="local"),
    )
    state.books.settle(11)
    slots = state.books.replicas
    assert {name: replica.total for name, replica in slots.items()} == {"replica-1": 0, "local": 4}
    assert sum(slots["replica-1"].idle_s.values()) == 0
    assert sum(slots["local"].idle_s.values()) == 40


def test_times_never_run_backwards_and_what_is_no_event_is_counted(tmp_path: Path) -> None:
    """Two threads may write in another order than they looked at the clock."""
    path = tmp_path / "events.jsonl"
    lines = [line(2, "issued", "a", wall=1002.0), b"{torn", line(1, "leased", "a", worker="w")]
    path.write_bytes(b"\n".join(lines) + b"\n")
    file = EventFile(path)
    assert [event.time for event in file.new()] == [1002.0, 1002.0]
    assert (file.torn, file.time_of(5)) == (1, 1005.0)


def test_a_file_that_grows_is_read_on_from_where_it_ended(tmp_path: Path) -> None:
    """Half a line is left for the next look; a file that is not there yet is empty."""
    file = EventFile(tmp_path / "events.jsonl")
    assert list(file.new()) == []
    with (tmp_path / "events.jsonl").open("ab", buffering=0) as out:
        out.write(STARTED + b"\n" + STARTED[:9])
        assert len(list(file.new())) == 1
        out.write(STARTED[9:] + b"\n")
        assert len(list(file.new())) == 1
    assert file.torn == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("agentflow_queue_depth{stage=generation}", 1),
        ("agentflow_queue_wait_seconds_sum{stage=reward}", 1.0),
        ("agentflow_slots_busy{replica=w}", 0),
        ("agentflow_slot_idle_seconds_total{replica=w,reason=command}", 2.0),
        ("agentflow_envs{state=running}", 1),
        ("agentflow_tokens_total{cause=delivered}", 5),
        ("agentflow_preemptions_total{reason=priority}", 0),
        ("agentflow_weight_sync_seconds_count{phase=update}", 0),
        ("agentflow_staleness_versions_count", 0),
        ("agentflow_loop_lag_seconds{loop=flow}", 0.25),
        ("agentflow_env_stage_waiting{stage=live}", 3),
        ("agentflow_env_stage_waited_seconds_total{stage=live}", 1.5),
        ("agentflow_env_pool_hits_total{stage=pool}", 2),
        ("agentflow_episodes_ended_total{status=resolved,cause=submitted}", 1),
    ],
)
def test_figures_have_the_names_of_the_field(name: str, value: float) -> None:
    """Each under its name and labels, from one state."""
    state = fold(STARTED, *life("a", 0), *life("b", 20)[:4])
    gauges = {"live": {"waiting": 3.0, "waited_s": 1.5}, "pool": {"hits": 2.0}}
    found = figures(state, now=24.0, lags={"flow": 0.25}, gauges=gauges)
    assert flat(found)[name] == value
