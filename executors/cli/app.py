"""The commands of `agentflow` and their options."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentflow.config import AgentflowConfig, TasksConfig
from agentflow.config_loading import load_config
from agentflow.errors import ConfigError
from executors.cli import demo, demo_llm, look, report, running
from executors.cli.clean import clean
from executors.cli.eval import eval_command
from executors.cli.exits import HELP, ExitCode, told_in_one_line
from executors.cli.simulate import simulate_command
from executors.data.resuming import is_done, remove_spent_journal, resumed_config, run_config
from executors.data.versions import versions
from executors.runs.rescore import rescore
from executors.runs.session import Rollout
from executors.wiring import rehearse_engine, select_tasks

if TYPE_CHECKING:
    from collections.abc import Mapping

app = typer.Typer(
    name="agentflow",
    help=f"Roll out software-engineering agents, action by action.\n\n{HELP}",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help="YAML file with the whole configuration.")
]
TaskSource = Annotated[
    str | None,
    typer.Option("--tasks", help="bundled, pypi, or a file of SWE-bench rows (JSON, JSON lines)."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Set any field, as in sampling.top_p=0.9."),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def _print_version(wanted: bool) -> None:  # noqa: FBT001  # typer's callback
    if wanted:
        for name, version in versions().items():
            typer.echo(f"{name} {version or '(not installed)'}")
        raise typer.Exit


@app.callback()
def root(
    *,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Show versions."),
    ] = False,
) -> None:
    """Take the options that stand before a command."""


@app.command(epilog=HELP)
def run(  # noqa: PLR0913  # one parameter an option
    *,
    config: ConfigFile = None,
    tasks: TaskSource = None,
    engine: Annotated[
        str | None,
        typer.Option(
            help="http://host:port of an SGLang server, scripted:oracle, scripted:noop,"
            " scripted:noisy:SEED, scripted:tamper, or scripted:RUN_DIR to play a run back."
        ),
    ] = None,
    env: Annotated[str | None, typer.Option(help="Environment by name, as local.")] = None,
    agent: Annotated[str | None, typer.Option(help="Agent by name, as minisweagent.")] = None,
    out: Annotated[str | None, typer.Option(help="Run directory; must be new or empty.")] = None,
    n: Annotated[int | None, typer.Option(help="Episodes per task.")] = None,
    concurrency: Annotated[int | None, typer.Option(help="Episodes live at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random derives from it.")] = None,
    limit: Annotated[int | None, typer.Option(help="At most this many tasks.")] = None,
    journal: Annotated[
        bool | None,
        typer.Option("--journal", help="Keep what a killed run needs to be resumed."),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the killed run in this directory; takes no other option."),
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(help="Serve Prometheus metrics here; 0: any free port.")
    ] = None,
    assignments: Assignments = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Check everything but the engine's answer, print the resolved configuration and"
            " the plan; run nothing.",
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Roll out every task and judge the result."""
    options: dict[str, tuple[tuple[str, ...], Any]] = {
        "--tasks": (("tasks", "source"), tasks),
        "--engine": (("engine", "url"), engine),
        "--env": (("flow", "environment", "name"), env),
        "--agent": (("flow", "agent", "name"), agent),
        "--out": (("run", "out"), out),
        "--n": (("run", "n"), n),
        "--concurrency": (("rollout", "max_concurrency"), concurrency),
        "--seed": (("run", "seed"), seed),
        "--limit": (("tasks", "limit"), limit),
        "--metrics-port": (("observe", "metrics_port"), metrics_port),
        "--journal": (("rollout", "journal"), journal),
    }
    with told_in_one_line(debug=debug):
        if resume is not None:
            others = {"--config": (None, config), "--set": (None, assignments), **options}
            raise typer.Exit(resumed(resume, others=others))
        resolved = load_config(config, options=options, assignments=assignments or ())
        if dry_run:
            planned = asyncio.run(Rollout(resolved, make_engine=rehearse_engine).check())
            report.print_plan(resolved, episodes=planned)
            return
        watcher = report.make_watcher()
        rollout = Rollout(resolved, argv=sys.argv, watcher=watcher)
        code = running.run(rollout, grace_s=resolved.rollout.stop_grace_s, watcher=watcher)
    raise typer.Exit(code)


def resumed(path: Path, *, others: Mapping[str, tuple[Any, Any]]) -> ExitCode:
    """Go on with a killed run, as it was configured. Raises ConfigError."""
    given = [name for name, (_, value) in others.items() if value]
    if given:
        raise ConfigError(f"--resume: takes the run as it was; leave out {', '.join(given)}")
    config = resumed_config(path)
    if is_done(path):
        remove_spent_journal(path)
        typer.echo(f"nothing is left to do: the run in {path} is done")
        return ExitCode.DONE
    watcher = report.make_watcher()
    rollout = Rollout(config, argv=sys.argv, watcher=watcher, resume=True)
    return running.run(rollout, grace_s=config.rollout.stop_grace_s, watcher=watcher)


@app.command(name="demo", epilog=HELP)
def run_demo(
    *,
    out: Annotated[Path, typer.Option(help="Where OUT/oracle and OUT/noop go.")] = Path(
        "runs/demo"
    ),
    debug: Debug = False,
) -> None:
    """Roll out every task that ships, with a policy that solves them and one that does nothing.

    Fails unless the first resolves all of them and the second none.
    """
    with told_in_one_line(debug=debug):
        code = demo.run(out)
    raise typer.Exit(code)


@app.command(name="demo-llm", epilog=HELP)
def run_demo_llm(
    *,
    engine: Annotated[str, typer.Option(help="http://host:port of an SGLang server.")],
    model: Annotated[Path, typer.Option(help="Folder of the small model that it serves.")],
    out: Annotated[Path, typer.Option(help="Run directory; must be new or empty.")] = Path(
        "runs/demo-llm"
    ),
    limit: Annotated[int | None, typer.Option(help="At most this many tasks.")] = None,
    debug: Debug = False,
) -> None:
    """Let a small language model act on the tasks that ship, and show what it did.

    Worked examples stand before each task. Fails where no command was run.
    """
    with told_in_one_line(debug=debug):
        code = demo_llm.run(url=engine, model=model, out=out, limit=limit)
    raise typer.Exit(code)


@app.command(name="rescore", epilog=HELP)
def run_rescore(
    run_dir: Annotated[Path, typer.Argument(metavar="DIR", help="The run's directory.")],
    *,
    debug: Debug = False,
) -> None:
    """Judge the patches of a run again, without generating, into a file beside the old one."""
    with told_in_one_line(debug=debug):
        rescored = asyncio.run(rescore(run_config(run_dir, option="DIR"), run_dir))
        for line in (*rescored.lines(), f"kept in {rescored.path}"):
            typer.echo(line)


@app.command(name="clean", epilog=HELP)
def run_clean(
    *,
    docker_host: Annotated[
        str | None, typer.Option(help="The engine, as in DOCKER_HOST, which is the default.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Remove the containers that dead runs left on a Docker engine, and only those."""
    with told_in_one_line(debug=debug):
        clean(docker_host)


@app.command(name="tasks", epilog=HELP)
def list_tasks(
    source: Annotated[str, typer.Argument(help="bundled, pypi, or a file of SWE-bench rows.")],
    *,
    debug: Debug = False,
) -> None:
    """Check a set of tasks and list it."""
    with told_in_one_line(debug=debug):
        report.print_tasks(select_tasks(AgentflowConfig(tasks=TasksConfig(source=source))))


look.register(app)
app.command(name="simulate", epilog=HELP)(simulate_command)
app.command(name="eval", epilog=HELP)(eval_command)


def main() -> None:
    """Run the command line; exits the process."""
    app()
