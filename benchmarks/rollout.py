"""How far schedules are from the limit: `python -m benchmarks.rollout --json F`.

The production executors in virtual time, by scenario and policy (see `rollout_scenarios`,
`rollout_policies`). Every figure is the mean over the scenario's seeds, and exact: a second run
gives the same digits. Flat names: `rho.SCENARIO.POLICY`, `makespan.SCENARIO.POLICY`,
`utilisation.SCENARIO.POLICY` and so on, one for each column.

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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.report import write_report
from benchmarks.rollout_policies import CONTAINERS, POLICIES
from benchmarks.rollout_run import play
from benchmarks.rollout_scenarios import ENGINE, SCENARIOS
from benchmarks.slot_trace import write_trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from benchmarks.rollout_run import Outcome

_DIGITS = 6
"""Decimals of a figure."""
_HEADS = {
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


def main() -> None:
    """Play everything asked for, print the tables, write the files."""
    options = _parser().parse_args()
    scenarios, policies = options.scenario or list(SCENARIOS), options.policy or list(POLICIES)
    jobs = [
        Job(scenario, policy, seed, options.trace if seed == 0 else None)
        for scenario, policy in product(scenarios, policies)
        for seed in range(options.seeds or SCENARIOS[scenario].seeds)
    ]
    outcomes = play_all(jobs, workers=options.workers)
    figures = figures_of(outcomes)
    console = Console(width=180)
    for scenario in scenarios:
        console.print(_table(scenario, policies, figures))
        console.print(_falls(scenario, policies, outcomes))
    if options.plot is not None:
        from benchmarks.rollout_plot import plot  # noqa: PLC0415  # matplotlib is optional

        firsts = {job: outcome for job, outcome in outcomes.items() if job.seed == 0}
        plot(options.plot, {(j.scenario, j.policy): o for j, o in firsts.items()})
    seeds = {scenario: options.seeds or SCENARIOS[scenario].seeds for scenario in scenarios}
    config = {"engine": ENGINE, "seeds": seeds, "policies": policies}
    write_report(options.json, figures, config=config)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rollout")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--scenario", choices=SCENARIOS, action="append", help="else all")
    parser.add_argument("--policy", choices=POLICIES, action="append", help="else all")
    parser.add_argument("--seeds", type=int, help="figures are means over so many; else 5 or 1")
    parser.add_argument("--plot", type=Path, help="write slot use over time as PNG")
    parser.add_argument("--trace", type=Path, help="write a trace of every first run here")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="processes")
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
    """Return the mean of every column over the seeds, by flat names."""
    runs: dict[str, list[float]] = {}
    for job, outcome in outcomes.items():
        for column, value in outcome.columns.items():
            runs.setdefault(f"{column}.{job.scenario}.{job.policy}", []).append(value)
    figures = {name: round(fmean(values), _DIGITS) for name, values in runs.items()}
    for name, makespan in list(figures.items()):
        column, scenario, policy = name.split(".")
        peer = figures.get(f"makespan.{scenario}.{CONTAINERS}")
        if column == "makespan" and peer is not None:
            figures[f"gain.{scenario}.{policy}"] = round(peer / makespan, _DIGITS)
    return figures


# --- tables -----------------------------------------------------------------------------------


def _table(scenario: str, policies: Sequence[str], figures: Mapping[str, float]) -> Table:
    table = Table(title=f"{scenario}: {SCENARIOS[scenario].about}", title_justify="left")
    table.add_column("policy")
    for head in _HEADS.values():
        table.add_column(head, justify="right")
    for policy in policies:
        cells = (_cell(column, figures.get(f"{column}.{scenario}.{policy}")) for column in _HEADS)
        table.add_row(policy, *cells)
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
            table.add_row(policy, *(f"{share + 0.0:.1%}" for share in parts))
    return table


if __name__ == "__main__":
    main()
