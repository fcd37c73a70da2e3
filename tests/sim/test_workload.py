"""Workloads: what is drawn is what was published, and depends on its own name only."""

from __future__ import annotations

import statistics

import pytest

from agentflow.errors import ConfigError
from agentflow.sim.clock import VirtualRunner
from agentflow.sim.engine_spec import load_timings
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.sim.workload import Workload, load_workload
from agentflow.types import EpisodeId


def draw(workload: Workload, *, groups: int, seed: int = 1) -> list[EpisodeTrace]:
    """Draw episodes in groups of eight."""
    runner = VirtualRunner(seed=seed)
    return workload.episodes(groups=groups, group_size=8, random_for=runner.random)


def test_the_reference_workload_has_its_published_shape() -> None:
    """40 turns and 245 output tokens in the median, 8k first prompts, 60k at most."""
    traces = draw(load_workload("reference"), groups=24)
    turns = [len(trace.turns) for trace in traces]
    outputs = [turn.output for trace in traces for turn in trace.turns]
    assert statistics.median(turns) == pytest.approx(40, rel=0.1)
    assert statistics.median(outputs) == pytest.approx(245, rel=0.05)
    assert {trace.prompt for trace in traces} == {8000}
    assert max(trace.tokens for trace in traces) <= 60_000


def test_tool_times_have_the_published_tail() -> None:
    """p50 0.3 s, p90 13.6 s and p99 216 s, within a quarter."""
    traces = draw(load_workload("heavy-tail"), groups=24)
    times = [turn.command_s for trace in traces for turn in trace.turns[:-1]]
    cuts = statistics.quantiles(times, n=100)
    assert (cuts[49], cuts[89], cuts[98]) == pytest.approx((0.3, 13.6, 216), rel=0.25)


def test_members_of_a_group_are_alike_and_not_equal() -> None:
    """Turn counts vary less within a group than over all."""
    traces = draw(load_workload("reference"), groups=24)
    counts = [len(trace.turns) for trace in traces]
    within = [statistics.pstdev(counts[at : at + 8]) for at in range(0, len(counts), 8)]
    assert 0 < statistics.fmean(within) < 0.9 * statistics.pstdev(counts)


def test_an_episode_depends_on_the_seed_and_its_name_only() -> None:
    """A larger draw begins with the smaller one; another seed gives other episodes."""
    workload = load_workload("tiny")
    few, many = draw(workload, groups=2), draw(workload, groups=4)
    assert many[: len(few)] == few
    assert draw(workload, groups=2, seed=2) != few


def test_unknown_names_are_errors_that_list_the_known_ones() -> None:
    """For workloads and timings alike."""
    with pytest.raises(ConfigError, match=r"no workload 'huge'.*reference"):
        load_workload("huge")
    with pytest.raises(ConfigError, match=r"no timings 'gpt'.*qwen3-8b-h200-tp1"):
        load_timings()["gpt"]


def test_timings_ship_with_their_source_and_predict_a_published_row() -> None:
    """64 sequences at 8,000 tokens on Qwen3-8B, H200, TP1 were computed as 21.9 ms."""
    table = load_timings()
    assert "aiconfigurator" in table.source
    step = table["qwen3-8b-h200-tp1"].timings.decode_s(64, 64 * 8000)
    assert step == pytest.approx(21.9e-3, rel=0.06)


def test_a_trace_knows_what_its_turns_compute() -> None:
    """The second turn prefills the observation and the last token, over everything before."""
    trace = EpisodeTrace(
        episode=EpisodeId(uid="u"),
        prompt=100,
        turns=[TurnTrace(output=5, command_s=2.0, observation=7), TurnTrace(output=3)],
        start_s=1.0,
        verify_s=4.0,
    )
    assert trace.turn_ends() == [105, 115]
    work = trace.work()
    assert [(t.new, t.prefix, t.decoded, t.env_s) for t in work.turns] == [
        (100, 0, 4, 2.0),
        (8, 104, 2, 0.0),
    ]
    assert (work.start_s, work.verify_s, work.shared) == (1.0, 5.0, 100)
