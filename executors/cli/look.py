"""`agentflow status`, `why` and `trace`: a run seen from outside."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import orjson
import typer
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from agentflow.observe.records import EventFile
from agentflow.observe.run_trace import RunTrace
from agentflow.observe.trace import MAX_EVENTS
from executors.cli.exits import HELP, ExitCode, told_in_one_line
from executors.cli.report import make_console
from executors.runs.files import write_chunks
from executors.watching.run_look import RunLook, Standing, find_run
from executors.watching.status import WORDS, headlines, status_data
from executors.watching.why import Why

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_ROWS = 40
"""Episodes shown at once; --json has them all."""

Folder = Annotated[
    Path | None,
    typer.Argument(
        metavar="[DIR]", help="The run's directory; the newest under runs/ if left out."
    ),
]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def status_command(
    folder: Folder = None,
    *,
    watch: Annotated[
        bool, typer.Option("--watch", help="Look again and again until the run has ended.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object a look, with every open episode.")
    ] = False,
    every: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    debug: Debug = False,
) -> None:
    """Show what each episode of a run is doing and for how long; reads files alone.

    Works on runs that go, have ended, or were killed.
    """
    with told_in_one_line(debug=debug):
        look = RunLook(find_run(folder))
        try:
            _show(look, watch=watch, as_json=as_json, every_s=every)
        except KeyboardInterrupt as interrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from interrupt


def why_command(
    episode: Annotated[
        str, typer.Argument(metavar="UID", help="uid#replica_index, or a uid for its whole group.")
    ],
    folder: Folder = None,
    *,
    debug: Debug = False,
) -> None:
    """Say why an episode waits and why it has its priority: its place in line, and what is full."""
    with told_in_one_line(debug=debug):
        look = RunLook(find_run(folder))
        why = Why(look)
        for progress in look.named(episode):
            first, *rest = why.explain(progress)
            typer.echo(first)
            for line in rest:
                typer.echo(f"  {line}")


def trace_command(
    folder: Folder = None,
    *,
    out: Annotated[
        Path | None, typer.Option(help="The file to write; DIR/trace.json if left out.")
    ] = None,
    events: Annotated[
        int, typer.Option(min=1, help="Slices and counter values that are kept, the newest.")
    ] = MAX_EVENTS,
    debug: Debug = False,
) -> None:
    """Draw a run as a trace for ui.perfetto.dev or chrome://tracing, from its events.jsonl."""
    with told_in_one_line(debug=debug):
        found = find_run(folder)
        RunLook(found)
        trace = RunTrace(limit=events)
        trace.feed(EventFile(found / "events.jsonl").new())
        trace.close()
        path = out if out is not None else found / "trace.json"
        write_chunks(path, trace.chunks())
        typer.echo(path)


def register(app: typer.Typer) -> None:
    """Add the commands to `app`."""
    app.command(name="status", epilog=HELP)(status_command)
    app.command(name="why", epilog=HELP)(why_command)
    app.command(name="trace", epilog=HELP)(trace_command)


# --- showing ----------------------------------------------------------------------------------


def _show(look: RunLook, *, watch: bool, as_json: bool, every_s: float) -> None:
    console = make_console()
    if as_json:
        _repeat(look, lambda: _print_json(look), watch=watch, every_s=every_s)
    elif watch and console.is_terminal:
        with Live(_picture(look), console=console, auto_refresh=False) as live:
            _repeat(
                look,
                lambda: live.update(_picture(look), refresh=True),
                watch=True,
                every_s=every_s,
            )
    else:
        _repeat(look, lambda: console.print(_picture(look)), watch=watch, every_s=every_s)


def _repeat(look: RunLook, show: Callable[[], None], *, watch: bool, every_s: float) -> None:
    show()
    while watch and look.standing is Standing.RUNNING:
        time.sleep(every_s)
        look.refresh()
        show()


def _print_json(look: RunLook) -> None:
    typer.echo(orjson.dumps(status_data(look)).decode())


def _picture(look: RunLook) -> Group:
    lines = [Text(line) for line in headlines(look)]
    episodes = look.open_episodes()
    if not episodes:
        return Group(*lines)
    table = Table("episode", "what it does", "seconds", "turn", "attempt", "tokens", "worker")
    for progress in episodes[:_MAX_ROWS]:
        table.add_row(
            Text(str(progress.episode)),
            WORDS[progress.doing],
            f"{look.now - progress.since:.1f}",
            str(progress.turns),
            str(progress.attempt),
            str(progress.tokens),
            progress.worker or "-",
        )
    if len(episodes) > _MAX_ROWS:
        lines.append(Text(f"{len(episodes)} episodes are open; {_MAX_ROWS} are shown"))
    return Group(*lines, table)
