"""What schedules must reach without any prediction, and the table of README that tells of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.table import Table

from benchmarks.rollout_policies import CONTAINERS, JUDGED, SLOTS
from benchmarks.rollout_scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Mapping

_GAIN = f"makespan of {CONTAINERS} over that of fcfs"


class Goal(NamedTuple):
    """One goal, and what was found."""

    text: str
    found: float
    limit: float
    at_least: bool = False
    """The limit is the lowest value allowed, not the highest."""

    @property
    def reached(self) -> bool:
        """Whether it holds."""
        return self.found >= self.limit if self.at_least else self.found <= self.limit


def goals(figures: Mapping[str, float]) -> list[Goal]:
    """Return the goals that `figures` can tell of; what was not played has none."""
    found = [
        Goal(f"rho of fcfs in {scenario}", figures[f"rho.{scenario}.fcfs"], limit)
        for scenario, limit in (("throughput_bound", 1.10), ("container_capped", 1.15))
        if f"rho.{scenario}.fcfs" in figures
    ]
    fast, slow = (figures.get(f"makespan.slow_env.{policy}") for policy in ("fcfs", SLOTS))
    if fast is not None and slow is not None:
        found.append(Goal(f"makespan of fcfs over that of {SLOTS} in slow_env", fast / slow, 0.6))
    gains = {
        name.split(".")[1]: gain
        for name, gain in figures.items()
        if name.startswith("gain.") and name.endswith(".fcfs")
    }
    if gains:
        worst = min(gains, key=gains.__getitem__)
        found.append(Goal(f"{_GAIN}, worst: {worst}", gains[worst], 0.99, at_least=True))
    if "kv_pressed" in gains:
        found.append(Goal(f"{_GAIN} in kv_pressed", gains["kv_pressed"], 1.2, at_least=True))
    return found


def goals_table(found: list[Goal]) -> Table:
    """Return the table that is printed."""
    table = Table("goal", "", "limit", "found", title="goals", title_justify="left")
    for goal in found:
        sign = "at least" if goal.at_least else "at most"
        state = "reached" if goal.reached else "MISSED"
        table.add_row(goal.text, state, f"{sign} {goal.limit:.2f}", f"{goal.found:.3f}")
    return table


def readme_table(figures: Mapping[str, float]) -> str:
    """Return README's table of all scenarios."""
    rows = [
        "| scenario | ρ slots | ρ containers | ρ fcfs | fcfs, times as fast as containers |",  # noqa: RUF001
        "|---|---|---|---|---|",
    ]
    for scenario, what in SCENARIOS.items():
        rhos = (figures[f"rho.{scenario}.{policy}"] for policy in JUDGED)
        cells = [*(f"{rho:.3f}" for rho in rhos), f"{figures[f'gain.{scenario}.fcfs']:.2f}"]
        rows.append(f"| `{scenario}`: {what.about} | {' | '.join(cells)} |")
    return "\n".join(rows)
