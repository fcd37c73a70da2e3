"""`agentflow simulate`: a workload, or a recorded run, in virtual time; or seeds of faults."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path  # noqa: TC003  # typer reads annotations when it runs
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agentflow.errors import ConfigError
from agentflow.sim.clock import VirtualRunner
from agentflow.sim.engine_spec import load_timings
from agentflow.sim.environment import EnvLimits
from agentflow.sim.setup import SimulationConfig, engine_spec
from agentflow.sim.workload import load_workload
from executors.cli.exits import ExitCode, told_in_one_line
from executors.virtual.drivers import Schedule, driver_of
from executors.virtual.fault_seeds import FaultSums, play_seeds
from executors.virtual.replay import load_recording
from executors.virtual.simulate import StartOrder, ordered, simulate

if TYPE_CHECKING:
    from agentflow.sim.trace import EpisodeTrace
    from executors.virtual.simulate import SimulationReport

_CONTEXT_ROOM = 1 << 20
"""Context of a replayed engine: the recorded episodes fit it whatever their model was."""


def simulate_command(  # noqa: PLR0913  # one parameter an option
    ctx: typer.Context,
    *,
    workload: Annotated[str, typer.Option(help="A shipped workload by name.")] = "reference",
    from_: Annotated[
        Path | None, typer.Option("--from", help="Schedule this run directory's episodes instead.")
    ] = None,
    engine: Annotated[str, typer.Option(help="Model and GPUs by name.")] = "qwen3-32b-h200-tp4",
    groups: Annotated[int, typer.Option(min=1, help="Prompts.")] = 32,
    group_size: Annotated[int, typer.Option(min=1, help="Episodes per prompt.")] = 8,
    slots: Annotated[int, typer.Option(min=1, help="Generations at once on one replica.")] = 64,
    replicas: Annotated[int, typer.Option(min=1, help="Engines.")] = 1,
    kv_tokens: Annotated[
        int | None, typer.Option(help="KV tokens of one replica; 0: the GPUs'; none: unlimited.")
    ] = None,
    page_size: Annotated[int, typer.Option(min=1, help="Tokens of a KV page.")] = 1,
    live: Annotated[int, typer.Option(min=1, help="Episodes live at once.")] = 128,
    containers: Annotated[int | None, typer.Option(min=1, help="Environments at once.")] = None,
    starts: Annotated[int | None, typer.Option(min=1, help="Environment starts at once.")] = None,
    order: Annotated[StartOrder, typer.Option(help="Which episodes start first.")] = (
        StartOrder.FCFS
    ),
    schedule: Annotated[
        Schedule, typer.Option(help="Whole trajectories, or single actions and in which order.")
    ] = Schedule.NAIVE,
    seed: Annotated[int, typer.Option(help="Everything random derives from it.")] = 0,
    json: Annotated[Path | None, typer.Option(help="Write the figures here as well.")] = None,
    faults: Annotated[bool, typer.Option("--faults", help="Play seeds of faults instead.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="With --faults: how many (1), from --seed on.")
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=1, help="With --faults: seeds until there are so many turns.")
    ] = None,
    jobs: Annotated[int, typer.Option(min=1, help="With --faults: processes.")] = 1,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
) -> None:
    """Run episodes in virtual time and show how far the schedule is from the lower bound."""
    with told_in_one_line(debug=debug):
        _refuse_idle(ctx, faults=faults, recorded=from_ is not None)
        if faults:
            code = _play_faults(schedule, first=seed, seeds=seeds, turns=turns, jobs=jobs)
            raise typer.Exit(code)
        if json is not None and not json.parent.is_dir():
            raise ConfigError(f"--json {json}: the folder {json.parent} is not there")
        if live < replicas:
            raise ConfigError(
                f"--live {live}: is less than --replicas {replicas}; each needs an episode at least"
            )
        growth = 0.0
        if from_ is not None:
            traces, context = _recorded(from_), _CONTEXT_ROOM
        else:
            kind = load_workload(workload)
            random_for = VirtualRunner(seed=seed).random
            traces = kind.episodes(groups=groups, group_size=group_size, random_for=random_for)
            context, growth = kind.context_cap, kind.start_growth
        kv = kv_tokens if kv_tokens != 0 else _published_kv(engine)
        spec = engine_spec(engine, slots=slots, kv_tokens=kv, context=context, page_size=page_size)
        limits = EnvLimits(containers=containers, starts=starts, start_growth=growth)
        config = SimulationConfig(engine=spec, replicas=replicas, limits=limits, seed=seed)
        driver = driver_of(
            schedule,
            slots=slots * replicas,
            live=live,
            containers=containers,
            submitted=len(traces),
            replicas=replicas,
        )
        report = simulate(ordered(traces, order, spec.timings), config, driver)
        _print_report(report)
        if json is not None:
            _write(json, report)


_OF_WORKLOADS = frozenset({"workload", "groups", "group_size"})
_OF_FAULTS = frozenset({"faults", "seeds", "turns", "jobs"})
_OF_ALL = frozenset({"schedule", "seed", "debug"})


def _refuse_idle(ctx: typer.Context, *, faults: bool, recorded: bool) -> None:
    """Raise ConfigError for an option that was given and would do nothing."""
    for name in ctx.params:
        source = ctx.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE":
            continue
        option = "--" + name.strip("_").replace("_", "-")
        if faults and name not in _OF_FAULTS | _OF_ALL:
            raise ConfigError(f"{option}: with --faults the seed chooses it; leave one of them out")
        if not faults and name in _OF_FAULTS:
            raise ConfigError(f"{option}: is for --faults")
        if recorded and name in _OF_WORKLOADS:
            raise ConfigError(f"{option}: with --from the recorded run chooses it")


def _published_kv(engine: str) -> int:
    kv_tokens = load_timings()[engine].kv_tokens
    if kv_tokens is None:
        raise ConfigError(f"--kv-tokens 0: the KV capacity of {engine} is not known; give a number")
    return kv_tokens


def _recorded(folder: Path) -> list[EpisodeTrace]:
    recording = load_recording(folder)
    typer.echo(
        f"recorded   {len(recording.traces)} episodes in {recording.makespan_s:.1f} s"
        f" ({recording.skipped} without tokens left out)"
    )
    return recording.traces


# --- figures ----------------------------------------------------------------------------------


def figures(report: SimulationReport) -> dict[str, float]:
    """Return a run's figures by flat names; times in seconds."""
    found = {
        "episodes": len(report.samples),
        "turns": report.turns,
        "makespan_s": report.makespan_s,
        "mean_completion_s": report.mean_completion_s,
        "rho": report.rho,
        "kappa": report.bound.regime,
        "lower_bound_s": report.bound.seconds,
        "work_s": report.bound.work_s,
        "chain_s": report.bound.chain_s,
        "container_s": report.bound.container_s,
        "head_tail_s": report.bound.head_tail_s,
        "cpu_s": report.cpu_s,
    }
    if report.waterfall is not None:
        found |= {f"waterfall_{name}": s for name, s in asdict(report.waterfall).items()}
    for name in ("retractions", "evicted_tokens", "cached_tokens", "generated_tokens"):
        found[name] = sum(getattr(use, name) for use in report.uses)
    return found


_WATERFALL = (
    ("work_s", "work (W)"),
    ("idle_s", "idle"),
    ("update_s", "weight updates"),
    ("step_overhead_s", "steps beyond the fewest"),
    ("prefill_batches_s", "prefill batches"),
    ("recompute_s", "recomputed tokens"),
)


def _print_report(report: SimulationReport) -> None:
    bound = report.bound
    typer.echo(
        f"simulated  {len(report.samples)} episodes, {report.turns} turns"
        f" in {report.cpu_s:.1f} s of processor time\n"
        f"makespan   {report.makespan_s:.1f} s, mean completion {report.mean_completion_s:.1f} s\n"
        f"bound      {bound.seconds:.1f} s = max(W {bound.work_s:.1f}, CP {bound.chain_s:.1f},"
        f" SL {bound.container_s:.1f}, HT {bound.head_tail_s:.1f})\n"
        f"rho        {report.rho:.4f}   kappa {bound.regime:.2f}"
    )
    if report.waterfall is not None:
        typer.echo("waterfall")
        for name, label in _WATERFALL:
            seconds = round(getattr(report.waterfall, name), 6) + 0.0  # no "-0.0"
            typer.echo(f"  {label:<24}{seconds:>10.1f} s  {seconds / report.makespan_s:>6.1%}")
    typer.echo(f"events     {report.events_digest}")


def _write(path: Path, report: SimulationReport) -> None:
    document = {"figures": figures(report), "events_digest": report.events_digest}
    try:
        path.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2))
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from error


# --- faults -----------------------------------------------------------------------------------


def _play_faults(
    schedule: Schedule, *, first: int, seeds: int | None, turns: int | None, jobs: int
) -> ExitCode:
    """Play so many seeds, or so many turns; print what happened and what did not hold."""
    if seeds is not None and turns is not None:
        raise ConfigError(f"--turns {turns}: --seeds {seeds} says how many; leave one of them out")
    sums = FaultSums()
    if seeds is None and turns is None:
        seeds = 1
    with closing(play_seeds(schedule, first=first, jobs=jobs)) as runs:
        while sums.seeds < seeds if seeds is not None else sums.turns < (turns or 0):
            run = next(runs)
            sums.add(run)
            for violation in run.violations:
                again = f"--faults --schedule {schedule} --seeds 1 --seed {run.seed}"
                typer.echo(f"seed {run.seed}: {violation}\n  replay: agentflow simulate {again}")
    _print_sums(sums)
    return ExitCode.FAILED if sums.violations else ExitCode.DONE


def _print_sums(sums: FaultSums) -> None:
    typer.echo(
        f"{sums.seeds} seeds, {sums.episodes} episodes, {sums.turns} turns,"
        f" {sums.faults.total()} faults, {sums.violations} violations"
    )
    causes = [f"{cause} {n}" for cause, n in sums.tokens.items() if n and cause != "received"]
    typer.echo(f"tokens received {sums.tokens['received']} = {' + '.join(causes)}")
    for fault, count in sorted(sums.faults.items(), key=lambda item: (-item[1], item[0])):
        typer.echo(f"  {count:>7} {fault}")
