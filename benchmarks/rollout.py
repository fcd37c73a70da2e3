"""How far schedules are from the limit: `python -m benchmarks.rollout --json F`.

The production executors in virtual time, by scenario and policy (see `rollout_scenarios`,
`rollout_policies`). Every figure is the mean over the scenario's seeds, and exact: a second run
gives the same digits. Flat names: `rho.SCENARIO.POLICY`, `makespan.SCENARIO.POLICY`,
`utilisation.SCENARIO.POLICY` and so on, one for each column. Fails where a goal is missed.

    rho        makespan over the lower bound, which no schedule beats: the distance to the limit
    gain       makespan of trajectory_containers over this one: the distance to the peer
    slots      share of generation slots in use, over time
    useful     work that any schedule must do, over the makespan: 1 is the model's best
    envs       share of containers that start or run something
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib.util import find_spec
from itertools import product
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.report import output_file, output_folder, positive, write_report
from benchmarks.rollout_goals import goals, goals_table
from benchmarks.rollout_policies import CONTAINERS, JUDGED, POLICIES
from benchmarks.rollout_run import play
from benchmarks.rollout_scenarios import ENGINE, SCENARIOS
from benchmarks.slot_trace import write_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from benchmarks.rollout_run import Outcome

_DIGITS = 6
"""Decimals of a figure."""
COLUMNS = {
    "makespan": "makespan s",
    "rho": "rho",
    "gain": "gain",
    "utilisation": "slots %",
    "useful": "useful %",
    "env_utilisation": "envs %",
    "mean_completion": "mean s",
    "p99_completion": "p99 s",
    "group_completion": "group s",
    "preemptions": "preempted",
    "recomputed_tokens": "recomputed",
    "longest_wait": "wait s",
}
"""Names of the figures, and the heads of the table."""
_SHARES = frozenset({"utilisation", "useful", "env_utilisation"})
_FALL = {
    "work_s": "work",
    "idle_s": "idle",
    "update_s": "updates",
    "step_overhead_s": "steps",
    "prefill_batches_s": "prefills",
    "recompute_s": "recomputed",
}


class Job(NamedTuple):
    """One run."""

    scenario: str
    policy: str
    seed: int
    trace: Path | None


def main(arguments: Sequence[str] | None = None) -> int:
    """Play everything asked for, print the tables, write the files; 1 when a goal is missed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.plot is not None and find_spec("matplotlib") is None:
        parser.error("argument --plot: needs matplotlib (`pip install '.[bench]'`)")
    scenarios, policies = options.scenario or list(SCENARIOS), options.policy or list(POLICIES)
    jobs = [
        Job(scenario, policy, seed, options.trace if seed == 0 else None)
        for scenario, policy in product(scenarios, policies)
        for seed in range(_seeds(scenario, policy, options))
    ]
    outcomes = play_all(jobs, workers=options.workers)
    figures = figures_of(outcomes)
    console = Console(width=180)
    for scenario in scenarios:
        seeds = {policy: _seeds(scenario, policy, options) for policy in policies}
        console.print(_table(scenario, seeds, figures))
        if (falls := _falls(scenario, policies, outcomes)).row_count:
            console.print(falls)
    if options.plot is not None:
        from benchmarks.rollout_plot import plot  # noqa: PLC0415  # matplotlib is optional

        firsts = {job: outcome for job, outcome in outcomes.items() if job.seed == 0}
        plot(options.plot, {(j.scenario, j.policy): o for j, o in firsts.items()})
    found = goals(figures)
    if found:
        console.print(goals_table(found))
    seeds = {f"{s}.{p}": _seeds(s, p, options) for s, p in product(scenarios, policies)}
    config = {"engine": ENGINE, "seeds": seeds, "policies": policies}
    write_report(options.json, figures, config=config)
    return int(not all(goal.reached for goal in found))


def _seeds(scenario: str, policy: str, options: argparse.Namespace) -> int:
    """Over how many seeds the figures are means."""
    seeds: int = options.seeds or SCENARIOS[scenario].seeds
    return seeds if policy in JUDGED else min(seeds, options.other_seeds or seeds)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout")
    parser.add_argument("--json", type=output_file, help="write the figures here")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="else all")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="else all")
    parser.add_argument("--seeds", type=positive, help="means are over so many; else 5 or 1")
    parser.add_argument(
        "--other-seeds", type=positive, help=f"at most so many but for {', '.join(JUDGED)}"
    )
    parser.add_argument("--plot", type=output_file, help="write slot use over time as PNG")
    parser.add_argument("--trace", type=output_folder, help="write a trace of every first run here")
    parser.add_argument("--workers", type=positive, default=os.cpu_count(), help="processes")
    return parser


def play_all(jobs: Sequence[Job], *, workers: int | None) -> dict[Job, Outcome]:
    """Play every job, in so many processes; what comes out does not depend on their number."""
    with ProcessPoolExecutor(workers, initializer=gc.disable) as pool:
        return dict(zip(jobs, pool.map(_play, jobs), strict=True))


def _play(job: Job) -> Outcome:
    outcome, stays = play(SCENARIOS[job.scenario], job.policy, job.seed)
    if job.trace is not None:
        path = job.trace / f"{job.scenario}.{job.policy}.json.gz"
        write_trace(path, stays, SCENARIOS[job.scenario].names(job.seed))
    gc.collect()  # once a run, not on the way: a tenth of its time
    return outcome


def figures_of(outcomes: Mapping[Job, Outcome]) -> dict[str, float]:
    """Return the mean of every column over the seeds, by flat names; a gain over equal seeds."""
    runs: dict[str, list[float]] = {}
    for job, outcome in outcomes.items():
        for column, value in outcome.columns.items():
            runs.setdefault(f"{column}.{job.scenario}.{job.policy}", []).append(value)
    figures = {name: _mean(values) for name, values in runs.items()}
    for name, makespans in runs.items():
        column, scenario, policy = name.split(".")
        peer = runs.get(f"makespan.{scenario}.{CONTAINERS}", [])[: len(makespans)]
        if column == "makespan" and peer:
            gain = _mean(peer) / _mean(makespans)
            figures[f"gain.{scenario}.{policy}"] = round(gain, _DIGITS)
    return figures


def _mean(values: Sequence[float]) -> float:
    return round(fmean(values), _DIGITS)


# --- tables -----------------------------------------------------------------------------------


def _table(scenario: str, seeds: Mapping[str, int], figures: Mapping[str, float]) -> Table:
    table = Table(title=f"{scenario}: {SCENARIOS[scenario].about}", title_justify="left")
    table.add_column("policy")
    for head in ("seeds", *COLUMNS.values()):
        table.add_column(head, justify="right")
    for policy, number in seeds.items():
        cells = (_cell(column, figures.get(f"{column}.{scenario}.{policy}")) for column in COLUMNS)
        table.add_row(policy, str(number), *cells)
    return table


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column in _SHARES:
        return f"{value:.1%}"
    return f"{value:.3f}" if column in {"rho", "gain"} else f"{value:,.0f}"


def _falls(scenario: str, policies: Sequence[str], outcomes: Mapping[Job, Outcome]) -> Table:
    table = Table(title="where the engine's time went, in % of the makespan", title_justify="left")
    table.add_column("policy")
    for head in _FALL.values():
        table.add_column(head, justify="right")
    for policy in policies:
        falls = [
            asdict(outcome.waterfall)
            for job, outcome in outcomes.items()
            if (job.scenario, job.policy) == (scenario, policy) and outcome.waterfall is not None
        ]
        if falls:
            whole = sum(sum(fall.values()) for fall in falls)
            parts = (sum(fall[part] for fall in falls) / whole for part in _FALL)
            table.add_row(policy, *(f"{round(share, 3) + 0.0:.1%}" for share in parts))
    return table


if __name__ == "__main__":
    sys.exit(main())
