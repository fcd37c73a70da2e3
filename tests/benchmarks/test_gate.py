"""`benchmarks.gate`: what may move, and what may not."""

from __future__ import annotations

import json
from itertools import product
from typing import TYPE_CHECKING

import pytest

from benchmarks.engine_rivals import CLIENTS
from benchmarks.gate import BASELINES, GATES, Gate, compare, main
from benchmarks.overhead import GOALS
from benchmarks.report import read_figures
from benchmarks.rollout import COLUMNS
from benchmarks.rollout_goals import goals, readme_table
from benchmarks.rollout_policies import POLICIES
from benchmarks.rollout_scenarios import SCENARIOS

if TYPE_CHECKING:
    from pathlib import Path

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


def test_a_file_becomes_the_baseline_and_is_compared_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a baseline the gate says how to make one; what is not gated is not kept."""
    path, kept_in = tmp_path / "found.json", tmp_path / "kept"

    def gate(ratio: float, *options: str) -> int:
        figures = {"ratio_to_bare": ratio, "growth": 1.0, "task_cpu_us": 7.0}
        path.write_text(json.dumps({"figures": figures}))
        return main(["task_admission", "--from", str(path), "--baselines", str(kept_in), *options])

    assert gate(10.0) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"python -m benchmarks.gate task_admission --refresh --from {path}" in told
    assert gate(10.0, "--refresh") == 0
    kept = read_figures(kept_in / "task_admission.json")
    assert kept == {"ratio_to_bare": 10.0, "growth": 1.0}
    assert [gate(ratio) for ratio in (5.0, 12.0, 13.0)] == [0, 0, 1]


def test_a_file_without_a_gated_figure_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By its name; it does not become the baseline."""
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"figures": {"growth": 1.0}}))
    options = ["--from", str(path), "--baselines", str(tmp_path), "--refresh"]
    assert main(["task_admission", *options]) == 1
    assert "lacks ratio_to_bare" in " ".join(capsys.readouterr().out.split())
    assert not (tmp_path / "task_admission.json").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"figures": [1]}', '{"figures": {"a": "b"}}'])
def test_a_file_that_is_no_report_is_told_by_its_path(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The baseline as well as what a benchmark wrote."""
    good, path = tmp_path / "good.json", tmp_path / "task_admission.json"
    good.write_text(json.dumps({"figures": {"ratio_to_bare": 1.0, "growth": 1.0}}))
    path.write_text(text)
    for source in (good, path):
        options = ["--from", str(source), "--baselines", str(tmp_path)]
        assert main(["task_admission", *options]) == 1
        told = capsys.readouterr().out
        assert f"{path}: " in told
        assert "it must be" in told


def test_a_file_that_cannot_be_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder is none."""
    assert main(["task_admission", "--from", str(tmp_path), "--baselines", str(tmp_path)]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert f"{tmp_path} cannot be read: Is a directory" in told


def test_the_clients_that_are_gated_are_measured() -> None:
    """By the names of their figures."""
    assert set(GATES["engine_client"].higher) <= {f"cpu_ratio_{name}_100" for name in CLIENTS}


def test_what_runs_in_every_test_run_has_its_baseline() -> None:
    """So that the gate is not open by mistake, and holds the goals that need no predictor."""
    figures = read_figures(BASELINES / "rollout_quick.json")
    assert GATES["rollout_quick"].exact
    assert {name for name in figures if name.startswith("gain.") and name.endswith(".fcfs")} == {
        f"gain.{scenario}.fcfs" for scenario in SCENARIOS
    }
    assert [goal for goal in goals(figures) if not goal.reached] == []


def test_all_scenarios_and_policies_have_an_exact_baseline() -> None:
    """In every column, and it reaches all five goals."""
    figures = read_figures(BASELINES / "rollout.json")
    assert GATES["rollout"].exact
    named = {tuple(name.split(".")) for name in figures}
    columns = {column for column, *_ in named}
    assert named == set(product(columns, SCENARIOS, POLICIES))
    assert columns == set(COLUMNS)
    assert [goal.reached for goal in goals(figures)] == [True] * 5


def test_what_scheduling_costs_has_a_baseline_that_reaches_its_goals() -> None:
    """Every goal is gated, and none is missed by what is kept."""
    figures = read_figures(BASELINES / "overhead.json")
    assert GOALS.keys() == set(GATES["overhead"].lower)
    assert {name for name, goal in GOALS.items() if figures[name] > goal} == set()


def test_the_readme_tells_the_baseline() -> None:
    """Its table is this one, digit by digit."""
    figures = read_figures(BASELINES / "rollout.json")
    table = readme_table(figures)
    readme = (BASELINES.parents[1] / "README.md").read_text()
    assert table in readme, f"its table must be:\n{table}"
