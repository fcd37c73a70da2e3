"""Exit codes: what each means, and how an error becomes one."""

from __future__ import annotations

import contextlib
import logging
from enum import IntEnum
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.logging import RichHandler

from agentflow.errors import AgentflowError, ConfigError
from executors.runs.logs import says_something

if TYPE_CHECKING:
    from collections.abc import Iterator

HELP = (
    "Exit codes: 0 done; 1 the run failed; 2 bad input, and nothing was changed;"
    " 130 interrupted (Ctrl-C or SIGTERM): what had ended is kept."
)


class ExitCode(IntEnum):
    """What the command's exit code says."""

    DONE = 0
    FAILED = 1
    BAD_INPUT = 2
    INTERRUPTED = 130


@contextlib.contextmanager
def told_in_one_line(*, debug: bool) -> Iterator[None]:
    """Print expected errors on stderr and exit by their kind; `debug` shows where they arose.

    A bug is not caught: it crashes with its traceback and exit code 1.
    """
    show_warnings(tracebacks=debug)
    try:
        yield
    except AgentflowError as error:
        if debug:
            raise
        code = ExitCode.BAD_INPUT if isinstance(error, ConfigError) else ExitCode.FAILED
        say(str(error))
        raise typer.Exit(code) from error


def say(message: str) -> None:
    """Print one error, each of its lines marked as such."""
    for line in message.splitlines() or [""]:
        typer.echo(f"error: {line}", err=True)


def show_warnings(*, tracebacks: bool) -> None:
    """Show what is logged as a warning on stderr, unless somebody arranged that already.

    Records with a traceback are left to the log file: the error that they belong to is told.
    """
    root = logging.getLogger()
    if root.handlers:
        return
    console = Console(stderr=True)
    handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
    handler.addFilter(says_something)
    if not tracebacks:
        handler.addFilter(lambda record: record.exc_info is None)
    root.addHandler(handler)
