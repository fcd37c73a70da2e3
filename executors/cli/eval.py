"""`agentflow eval`: several data sets, several copies a prompt, admitted by the TaskScheduler."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  # typer reads annotations when it runs
from typing import Annotated

import typer

from agentflow.config_loading import load_config_as
from executors.cli import report, running
from executors.cli.exits import told_in_one_line


def eval_command(  # noqa: PLR0913  # one parameter an option
    *,
    config: Annotated[
        Path, typer.Option("--config", "-c", help="YAML file with a section `eval`.")
    ],
    engine: Annotated[
        str | None, typer.Option(help="http://host:port of an SGLang server, or scripted:….")
    ] = None,
    out: Annotated[str | None, typer.Option(help="Run directory; must be new or empty.")] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", "--n-samples-per-eval-prompt", help="Copies of each prompt."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random derives from it.")] = None,
    cluster_layout: Annotated[
        str | None,
        typer.Option(
            "--env-cluster-layout", help="Nodes as JSON, or a file of it; absent: ungated."
        ),
    ] = None,
    num_cpus: Annotated[
        float | None,
        typer.Option("--env-num-cpus", help="Cores of a node whose layout does not say."),
    ] = None,
    memory_gb: Annotated[
        float | None,
        typer.Option("--env-memory-gb", help="Memory of a node whose layout does not say."),
    ] = None,
    concurrency: Annotated[
        int | None,
        typer.Option("--evaluator-concurrency", help="Samples that one evaluator runs at a time."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--evaluator-batch-size", help="Samples admitted together.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set any field, as in eval.n_samples=4."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
) -> None:
    """Evaluate on every data set of the file; print accuracy and pass@k."""
    from executors.task_scheduler.eval_config import EvalConfig  # noqa: PLC0415  # other commands
    from executors.task_scheduler.eval_session import EvalSession  # noqa: PLC0415  # need neither

    options = {
        "--engine": (("engine", "url"), engine),
        "--out": (("run", "out"), out),
        "--n": (("eval", "n_samples"), n),
        "--seed": (("run", "seed"), seed),
        "--env-cluster-layout": (("eval", "cluster_layout"), cluster_layout),
        "--env-num-cpus": (("eval", "num_cpus"), num_cpus),
        "--env-memory-gb": (("eval", "memory_gb"), memory_gb),
        "--evaluator-concurrency": (("eval", "concurrency"), concurrency),
        "--evaluator-batch-size": (("eval", "batch_size"), batch_size),
    }
    with told_in_one_line(debug=debug):
        resolved = load_config_as(
            EvalConfig, config, options=options, assignments=assignments or ()
        )
        watcher = report.make_watcher()
        session = EvalSession(resolved, argv=sys.argv, watcher=watcher)
        code = running.run(session, grace_s=resolved.rollout.stop_grace_s, watcher=watcher)
        report.print_metrics(session.metrics)
    raise typer.Exit(code)
