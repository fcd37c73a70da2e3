"""One run in the foreground: Ctrl-C once ends it cleanly, twice at once.

The first signal cancels the run: every environment is removed, what had ended is kept. A second
one, or the end of the grace period, leaves the process without waiting for anything.
"""

from __future__ import annotations

import asyncio
import os
import signal
from typing import TYPE_CHECKING

import typer

from executors.cli import report
from executors.cli.exits import ExitCode
from executors.session import RolloutFailed

if TYPE_CHECKING:
    from executors.cli.report import TerminalWatcher
    from executors.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM)

_ECHO_S = 0.5
"""A signal this soon after the first is the same one: `timeout` and shells send it to the process
and to its group. No hand presses Ctrl-C twice that fast."""


def run(rollout: Session, *, grace_s: float, watcher: TerminalWatcher) -> ExitCode:
    """Roll out, print the result table, and return the exit code. Raises AgentflowError."""
    try:
        with watcher:
            code = asyncio.run(_until_done_or_interrupted(rollout, grace_s=grace_s))
    except RolloutFailed:
        report.print_summary(rollout, watcher.samples)
        raise
    report.print_summary(rollout, watcher.samples)
    return code


async def _until_done_or_interrupted(rollout: Session, *, grace_s: float) -> ExitCode:
    loop = asyncio.get_running_loop()
    work = asyncio.current_task()
    assert work is not None
    first: float | None = None

    def on_signal() -> None:
        nonlocal first
        if first is not None:
            if loop.time() - first > _ECHO_S:
                _leave_at_once(rollout)
            return
        first = loop.time()
        typer.echo("ending; Ctrl-C again leaves at once", err=True)
        work.cancel()
        loop.call_later(grace_s, _leave_at_once, rollout)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    try:
        await rollout.run()
    except asyncio.CancelledError:
        if first is None:
            raise
        work.uncancel()
        return ExitCode.INTERRUPTED
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    return ExitCode.DONE


def _leave_at_once(rollout: Session) -> None:
    rollout.abandon()
    os._exit(ExitCode.INTERRUPTED)
