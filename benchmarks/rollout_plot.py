"""Slot use over time as a picture: a panel a scenario, a curve a policy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")  # before pyplot, which would look for a screen

import matplotlib.pyplot as plt

from benchmarks.rollout_scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from benchmarks.rollout_run import Outcome

_COLUMNS = 2


def plot(path: Path, outcomes: Mapping[tuple[str, str], Outcome]) -> None:
    """Draw `outcomes`, by scenario and policy."""
    scenarios = list(dict.fromkeys(scenario for scenario, _ in outcomes))
    rows = math.ceil(len(scenarios) / _COLUMNS)
    figure, panels = plt.subplots(
        rows, _COLUMNS, figsize=(12, 2.6 * rows), squeeze=False, layout="constrained"
    )
    for panel, scenario in zip(panels.flat, scenarios, strict=False):
        slots = SCENARIOS[scenario].slots * SCENARIOS[scenario].replicas
        for policy in (policy for name, policy in outcomes if name == scenario):
            outcome = outcomes[scenario, policy]
            width = outcome.columns["makespan"] / len(outcome.curve)
            times = [(part + 0.5) * width for part in range(len(outcome.curve))]
            panel.plot(times, [use / slots for use in outcome.curve], label=policy, linewidth=1)
        panel.set_title(scenario, fontsize=10)
        panel.set(ylim=(0, 1.05), xlim=(0, None))
        panel.set_xlabel("virtual seconds", fontsize=8)
    for panel in panels.flat[len(scenarios) :]:
        panel.set_axis_off()
    handles, labels = panels.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8)
    figure.supylabel("generation slots in use", fontsize=9)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)
