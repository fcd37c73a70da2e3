"""`benchmarks.rollout`: what its columns mean, and that they are exact."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from agentflow.config import RolloutConfig
from agentflow.policies import BUILTIN_POLICY
from agentflow.swe.scheduling_hooks import NoHooks
from benchmarks.rollout import Job, figures_of, main
from benchmarks.rollout_goals import goals
from benchmarks.rollout_meter import Held, SlotMeter, use_over_time
from benchmarks.rollout_policies import CONTAINERS, POLICIES, SLOTS
from benchmarks.rollout_run import play
from benchmarks.rollout_scenarios import SCENARIOS, Scenario
from benchmarks.slot_trace import write_trace
from executors.scheduling import scheduling_of
from priority.policies import AGE_S

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.rollout_run import Outcome

SMALL = {
    "plain": Scenario(about="", workload="tiny", groups=4, group_size=4, slots=3, containers=8),
    "pressed": Scenario(
        about="", workload="tiny", groups=4, group_size=4, slots=3, containers=8, kv_tokens=900
    ),
    "replicas": Scenario(
        about="", workload="tiny", groups=4, group_size=4, slots=2, containers=8, replicas=2
    ),
    "update": Scenario(
        about="",
        workload="tiny",
        groups=4,
        group_size=4,
        slots=3,
        containers=8,
        sync_at_s=5.0,
        update_s=2.0,
    ),
    "stream": Scenario(
        about="",
        workload="tiny",
        groups=5,
        group_size=4,
        slots=3,
        containers=8,
        stream=2,
        sync_every=2,
        update_s=1.0,
    ),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("scenario", SMALL)
def test_every_policy_plays_every_kind_of_scenario(scenario: str, policy: str) -> None:
    """To its end: shares are shares, no schedule beats the bound, and nothing is computed less."""
    outcome, _ = play(SMALL[scenario], policy, 0)
    columns = outcome.columns
    assert columns["rho"] >= 1
    assert 0 < columns["useful"] <= columns["utilisation"] + 1
    assert all(0 < columns[name] <= 1 for name in ("utilisation", "useful", "env_utilisation"))
    assert columns["mean_completion"] <= columns["p99_completion"] <= columns["makespan"]
    assert columns["mean_completion"] <= columns["group_completion"] <= columns["makespan"]
    assert columns["recomputed_tokens"] >= 0
    assert max(outcome.curve) <= SMALL[scenario].slots * SMALL[scenario].replicas + 1e-9


@pytest.mark.parametrize("policy", [CONTAINERS, "fcfs"])
def test_two_runs_of_one_seed_are_equal_and_two_seeds_are_not(policy: str) -> None:
    """To the last digit."""
    first, again, other = (play(SMALL["update"], policy, seed)[0].columns for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_figures_are_means_over_seeds_and_the_peer_is_trajectories() -> None:
    """By flat names: column, scenario, policy."""
    outcomes: dict[Job, Outcome] = {
        Job("plain", policy, seed, None): play(SMALL["plain"], policy, seed)[0]
        for policy in (SLOTS, CONTAINERS)
        for seed in (0, 1)
    }
    figures = figures_of(outcomes)
    spans = [o.columns["makespan"] for job, o in outcomes.items() if job.policy == SLOTS]
    assert figures[f"makespan.plain.{SLOTS}"] == pytest.approx(sum(spans) / 2)
    assert figures[f"gain.plain.{CONTAINERS}"] == 1
    assert figures[f"gain.plain.{SLOTS}"] == pytest.approx(
        figures[f"makespan.plain.{CONTAINERS}"] / figures[f"makespan.plain.{SLOTS}"], abs=1e-6
    )


def test_a_gain_compares_equal_seeds() -> None:
    """Where the peer was played with more."""
    outcomes = {
        Job("plain", policy, seed, None): play(SMALL["plain"], policy, seed)[0]
        for policy, seeds in ((CONTAINERS, 2), ("fcfs", 1))
        for seed in range(seeds)
    }
    spans = {job: outcome.columns["makespan"] for job, outcome in outcomes.items()}
    gain = spans[Job("plain", CONTAINERS, 0, None)] / spans[Job("plain", "fcfs", 0, None)]
    assert figures_of(outcomes)["gain.plain.fcfs"] == pytest.approx(gain, abs=1e-6)


def test_goals_are_told_with_what_was_found() -> None:
    """Those that the figures can tell of; a limit itself is reached."""
    figures = {
        "rho.throughput_bound.fcfs": 1.10,
        "makespan.slow_env.fcfs": 61.0,
        "makespan.slow_env.trajectory_slots": 100.0,
        "gain.slow_env.fcfs": 0.98,
        "gain.kv_pressed.fcfs": 1.2,
        "gain.kv_pressed.longest_predicted_first": 0.5,
    }
    found = goals(figures)
    assert [goal.found for goal in found] == [1.10, 0.61, 0.98, 1.2]
    assert [goal.reached for goal in found] == [True, False, False, True]
    assert "slow_env" in found[2].text
    assert goals({"rho.stream.fcfs": 1.0}) == []


@pytest.mark.slow
def test_figures_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    """To the last byte, and a plot and a trace are left."""
    asked = ["--scenario", "replicas", "--policy", CONTAINERS, "--policy", "fcfs"]
    written = []
    for workers in ("1", "2"):
        path = tmp_path / f"{workers}.json"
        extra = ["--json", str(path), "--workers", workers, "--trace", str(tmp_path / workers)]
        assert main([*asked, *extra]) == 0
        traces = sorted((tmp_path / workers).iterdir())
        assert [trace.name for trace in traces] == [
            "replicas.fcfs.json.gz",
            f"replicas.{CONTAINERS}.json.gz",
        ]
        written.append([path.read_bytes(), *(trace.read_bytes() for trace in traces)])
    assert written[0] == written[1]


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (["--scenario", "nowhere"], "invalid choice: 'nowhere' (choose from 'throughput_bound'"),
        (["--policy", "none"], "invalid choice: 'none' (choose from 'trajectory_slots'"),
        (["--seeds", "0"], "'0' must be a number from 1 on"),
        (["--workers", "two"], "'two' must be a number from 1 on"),
        (["--json", "/proc/nowhere/f.json"], "/proc/nowhere/f.json cannot be written"),
        (["--trace", "/proc/nowhere"], "/proc/nowhere cannot be made"),
        (["--json", "/"], "/ cannot be written; it must be a file's path"),
    ],
)
def test_bad_input_is_one_error(
    asked: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is played; it names the option, the value and what would be right."""
    with pytest.raises(SystemExit) as ended:
        main(asked)
    assert ended.value.code == 2
    assert f"error: argument {asked[0]}: {told}" in capsys.readouterr().err


@pytest.mark.parametrize("policy", BUILTIN_POLICY)
def test_no_policy_lets_new_episodes_wait_for_the_last(policy: str) -> None:
    """Episodes that go on stand before those that have not begun, but not for ever."""
    rollout = RolloutConfig(
        policy={"name": policy, **({"window": 1} if policy == "fcfs_preempt" else {})}
    )
    assert scheduling_of(rollout, NoHooks()).limits.age_s <= AGE_S


def test_slots_are_lanes_and_use_is_counted_over_time(tmp_path: Path) -> None:
    """No lane holds two at once, every stay is in the trace, and the curve has their seconds."""
    outcome, stays = play(SMALL["plain"], "fcfs", 0)
    lanes: dict[int, float] = {}
    for stay in sorted(stays, key=lambda stay: stay.start):
        assert stay.start >= lanes.get(stay.slot, 0.0)
        lanes[stay.slot] = stay.end
    assert len(lanes) == SMALL["plain"].slots
    seconds = sum(stay.end - stay.start for stay in stays)
    width = outcome.columns["makespan"] / len(outcome.curve)
    assert sum(outcome.curve) * width == pytest.approx(seconds)
    path = tmp_path / "trace.json.gz"
    write_trace(path, stays, SMALL["plain"].names(0))
    records = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    events = [record for record in records if record["ph"] == "X"]
    assert len(events) == len(stays)
    assert {event["tid"] - 1 for event in events} == set(lanes)
    assert events[0]["name"].startswith("tiny-")


def test_use_over_time_cuts_stays_at_borders() -> None:
    """A stay over three parts counts in each by its share."""
    stay = Held(slot=0, start=1.5, end=3.25, rid="", cached=0, tokens=0)
    assert use_over_time([stay], until_s=4, points=4) == [0.0, 0.5, 1.0, 0.25]


def test_a_meter_that_heard_nothing_has_nothing() -> None:
    """No division by what did not happen."""
    assert SlotMeter().slot_s == 0


def test_the_scenarios_are_those_that_are_named() -> None:
    """With the machine's and the workload's figures."""
    assert set(SCENARIOS) >= {"throughput_bound", "container_capped", "slow_env", "kv_pressed"}
    for name in ("throughput_bound", "container_capped", "slow_env"):
        scenario = SCENARIOS[name]
        assert (scenario.groups * scenario.group_size, scenario.group_size) == (256, 8)
        assert (scenario.slots, scenario.kv_tokens) == (64, None)
    pressed = SCENARIOS["kv_pressed"]
    contexts = [trace.tokens for trace in pressed.traces(0)]
    live = pressed.containers * sum(contexts) / len(contexts) / 2  # half of the end, in the mean
    assert live > 2.5 * (pressed.kv_tokens or 0)
