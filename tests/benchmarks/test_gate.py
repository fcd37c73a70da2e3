"""`benchmarks.gate`: what may move, and what may not."""

from __future__ import annotations

from benchmarks.gate import BASELINES, GATES, Gate, compare
from benchmarks.report import read_figures

EXACT = Gate(arguments=(), exact=True)
RATIOS = Gate(arguments=(), lower=("cost",), higher=("gain",))


def bad(gate: Gate, before: dict[str, float], now: dict[str, float]) -> list[str]:
    """Names of the figures that must not have moved."""
    return [moved.name for moved in compare(gate, before, now) if moved.bad]


def test_an_exact_figure_may_not_move_either_way_come_or_go() -> None:
    """Better is to be looked at as well."""
    before = {"same": 1.0, "better": 2.0, "worse": 2.0, "gone": 1.0}
    now = {"same": 1.0, "better": 1.999999, "worse": 2.000001, "new": 1.0}
    assert bad(EXACT, before, now) == ["better", "gone", "new", "worse"]


def test_a_ratio_may_improve_and_may_get_worse_by_the_tolerance() -> None:
    """By its own direction; what is not named is not compared."""
    before = {"cost": 2.0, "gain": 10.0, "us": 1.0}
    assert bad(RATIOS, before, {"cost": 0.5, "gain": 40.0, "us": 9.0}) == []
    assert bad(RATIOS, before, {"cost": 2.4, "gain": 8.2}) == []
    assert bad(RATIOS, before, {"cost": 2.6, "gain": 7.9}) == ["cost", "gain"]
    assert bad(RATIOS, before, {"gain": 10.0}) == ["cost"]


def test_what_runs_in_every_test_run_has_its_baseline() -> None:
    """So that the gate is not open by mistake, and holds the goals that need no predictor."""
    figures = read_figures(BASELINES / "rollout_quick.json")
    assert GATES["rollout_quick"].exact
    assert figures["rho.throughput_bound.fcfs"] <= 1.10
    assert figures["rho.container_capped.fcfs"] <= 1.15
    gains = {n: v for n, v in figures.items() if n.startswith("gain.") and n.endswith(".fcfs")}
    assert len(gains) == 8
    assert min(gains.values()) >= 0.99
    assert gains["gain.kv_pressed.fcfs"] >= 1.2
