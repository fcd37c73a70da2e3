"""Every benchmark against its baseline: `python -m benchmarks.gate [NAME…] [--refresh]`.

Runs the benchmarks one after the other, with fewer rounds than they have by themselves, prints what
they print, then which figures moved from `benchmarks/baselines/NAME.json`; exit code 1 when one
moved that must not, or a benchmark failed. Figures in virtual time are compared exactly: any other
digit means that scheduling changed, for the better or the worse, and is to be looked at, then
accepted with --refresh. Ratios of two runs in one process may get worse by a tolerance; wall-clock
figures are shown by their own benchmark alone. `NAME --from FILE` runs nothing: it takes what the
benchmark wrote before, to compare it or, with --refresh, to make it the baseline.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.table import Table

from agentflow.errors import ConfigError
from benchmarks.report import output_folder, read_figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

BASELINES: Final = Path(__file__).parent / "baselines"
TOLERANCE: Final = 0.25
"""A ratio on a machine that does other things as well moves by a tenth; a fourth means more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """One benchmark, and which of its figures are held to the baseline."""

    arguments: tuple[str, ...]
    """Module and options; `{out}` is the folder of the files."""
    exact: bool = False
    """All figures are, to the last digit."""
    lower: tuple[str, ...] = ()
    """Ratios that must not rise by more than the tolerance."""
    higher: tuple[str, ...] = ()
    """Ratios that must not fall by more than the tolerance."""
    needs_docker: bool = False
    by_default: bool = True

    def names(self, figures: Mapping[str, float]) -> list[str]:
        """Return the figures that are compared."""
        return sorted(figures) if self.exact else [*self.lower, *self.higher]


GATES: Final = {
    "rollout": Gate(
        arguments=("benchmarks.rollout", "--other-seeds", "2", "--plot", "{out}/slots.png"),
        exact=True,
    ),
    "rollout_quick": Gate(
        arguments=(
            *("benchmarks.rollout", "--seeds", "1"),
            *("--policy", "trajectory_containers", "--policy", "fcfs"),
        ),
        exact=True,
        by_default=False,
    ),
    "overhead": Gate(
        arguments=("benchmarks.overhead", "--rounds", "2", "--profile"),
        lower=("cpu_ratio_skeleton_10000", "growth_100_to_10000", "idle_episode_kb"),
    ),
    "engine_client": Gate(
        arguments=(
            *("benchmarks.engine_client", "--rounds", "3"),
            *("--concurrency", "100"),
        ),
        higher=("cpu_ratio_httpx_100", "cpu_ratio_aiohttp_json_100"),
    ),
    "task_admission": Gate(
        arguments=("benchmarks.task_admission", "--rounds", "3"), lower=("ratio_to_bare", "growth")
    ),
    "container_actions": Gate(
        arguments=("benchmarks.container_actions", "--rounds", "2"),
        higher=("p50_ratio_c1", "throughput_ratio_c16", "throughput_ratio_direct_c16", "live"),
        needs_docker=True,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A figure that is not what it was; None: it is missing on that side."""

    name: str
    before: float | None
    now: float | None
    bad: bool


@dataclass(slots=True, kw_only=True)
class Result:
    """What came of one benchmark."""

    seconds: float
    cpu_s: float = 0.0
    """Of all processors, its child processes included."""
    failure: str | None = None
    moved: list[Moved] = field(default_factory=list)

    @property
    def bad(self) -> bool:
        """Whether the gate is closed."""
        return self.failure is not None or any(moved.bad for moved in self.moved)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, compare, print."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.name if name not in GATES]:
        parser.error(f"no benchmark {unknown[0]!r}; there are: {', '.join(GATES)}")
    if options.from_ is not None and len(options.name) != 1:
        parser.error("--from: name the one benchmark whose file it is")
    names = options.name or [name for name, gate in GATES.items() if gate.by_default]
    results = dict[str, Result]()
    for name in names:
        if options.from_ is not None:
            results[name] = Result(seconds=0)
            _judge(results[name], name, options.from_, options)
        elif GATES[name].needs_docker and not _has_docker():
            print(f"== {name} is left out: there is no Docker engine (see `make docker`)")
        else:
            print(f"== {name}", flush=True)
            results[name] = _run(name, options)
    show(results)
    return int(any(result.bad for result in results.values()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate")
    parser.add_argument(
        "name", nargs="*", help=f"of {', '.join(GATES)}; else all but the quick one"
    )
    parser.add_argument(
        "--out", type=output_folder, default="runs/bench", help="folder of the files"
    )
    parser.add_argument(
        "--from", dest="from_", metavar="FILE", type=Path, help="take this file, run nothing"
    )
    parser.add_argument(
        "--baselines", type=output_folder, default=BASELINES, help="folder of what was"
    )
    parser.add_argument("--refresh", action="store_true", help="accept what comes as baseline")
    return parser


def _run(name: str, options: argparse.Namespace) -> Result:
    gate, path = GATES[name], options.out / f"{name}.json"
    path.unlink(missing_ok=True)
    began, before = time.monotonic(), _children_s()
    asked = [word.format(out=options.out) for word in gate.arguments]
    done = subprocess.run([sys.executable, "-m", *asked, "--json", str(path)], check=False)
    result = Result(seconds=time.monotonic() - began, cpu_s=_children_s() - before)
    if done.returncode:
        result.failure = f"exit code {done.returncode}"
    _judge(result, name, path, options)
    return result


def _children_s() -> float:
    """Processor seconds of all processes that were started and have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _judge(result: Result, name: str, path: Path, options: argparse.Namespace) -> None:
    """Compare what a benchmark wrote with the baseline, or make it the baseline."""
    gate, baseline = GATES[name], options.baselines / f"{name}.json"
    if not path.exists():
        result.failure = result.failure or f"there is no {path}"
        return
    try:
        figures = read_figures(path)
        before = read_figures(baseline) if baseline.exists() and not options.refresh else None
    except ConfigError as error:
        result.failure = str(error)
        return
    if missing := [figure for figure in gate.names(figures) if figure not in figures]:
        result.failure = f"{path} lacks {', '.join(missing)}"
    elif options.refresh:
        kept = {figure: figures[figure] for figure in gate.names(figures)}
        baseline.write_text(json.dumps({"figures": kept}, indent=1) + "\n")
    elif before is None:
        result.failure = result.failure or (
            f"there is no baseline: python -m benchmarks.gate {name} --refresh --from {path}"
        )
    else:
        result.moved = compare(gate, before, figures)


def compare(gate: Gate, before: Mapping[str, float], now: Mapping[str, float]) -> list[Moved]:
    """Return what moved, and whether it may."""
    return [
        Moved(name=name, before=old, now=new, bad=_bad(gate, name, old, new))
        for name in gate.names({**before, **now})
        if (old := before.get(name)) != (new := now.get(name))
    ]


def _bad(gate: Gate, name: str, before: float | None, now: float | None) -> bool:
    if gate.exact or before is None or now is None:
        return True
    if name in gate.lower:
        return now > before * (1 + TOLERANCE)
    return now < before / (1 + TOLERANCE)


def show(results: Mapping[str, Result]) -> None:
    """Print what moved and how it ended."""
    console = Console(width=120)
    table = Table("figure", "baseline", "now", "", title="moved", title_justify="left")
    for name, result in results.items():
        for moved in result.moved:
            sides = (_told(moved.before), _told(moved.now))
            table.add_row(f"{name}: {moved.name}", *sides, "must not" if moved.bad else "may")
    if table.row_count:
        console.print(table)
    for name, result in results.items():
        state = result.failure or ("moved" if result.bad else "holds")
        took = f"({result.seconds:.0f} s, {result.cpu_s:.0f} s of processors)"
        console.print(f"{name:20} {state} {took}", soft_wrap=True, markup=False)
        if result.bad and result.failure is None:
            console.print(f"  accept it with: python -m benchmarks.gate {name} --refresh")


def _told(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _has_docker() -> bool:
    return bool(os.environ.get("DOCKER_HOST")) or Path("/var/run/docker.sock").exists()


if __name__ == "__main__":
    sys.exit(main())
