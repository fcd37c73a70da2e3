"""One run in the foreground: Ctrl-C once ends it cleanly, twice at once.

The first signal cancels the run: every environment is removed, what had ended is kept. A second
one, or the end of the grace period, leaves the process without waiting for anything. Once the run
has ended, signals change nothing any more: the table is printed and the exit code is the run's.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import stat
from typing import TYPE_CHECKING

import typer

from executors.cli import report
from executors.cli.exits import ExitCode
from executors.runs.session import RolloutFailed

if TYPE_CHECKING:
    from executors.cli.report import TerminalWatcher
    from executors.runs.session import Session

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_ECHO_S = 0.5
"""A signal this soon after the first is the same one: `timeout` and shells send it to the process
and to its group. No hand presses Ctrl-C twice that fast."""


def run(rollout: Session, *, grace_s: float, watcher: TerminalWatcher) -> ExitCode:
    """Roll out, print the result table, and return the exit code. Raises AgentflowError.

    For a process that ends with the run: signals that end a run stay ignored afterwards.
    """
    try:
        with watcher:
            code = asyncio.run(_until_done_or_interrupted(rollout, grace_s=grace_s))
    except RolloutFailed:
        report.print_summary(rollout, watcher.samples)
        raise
    report.print_summary(rollout, watcher.samples)
    return code


async def _until_done_or_interrupted(rollout: Session, *, grace_s: float) -> ExitCode:
    work = asyncio.current_task()
    assert work is not None
    interruption = _Interruption(rollout, work, grace_s=grace_s)
    interruption.listen()
    try:
        await rollout.run()
    except asyncio.CancelledError:
        if not interruption.came:
            raise
        work.uncancel()
        return ExitCode.INTERRUPTED
    finally:
        interruption.ignore_more()
    return ExitCode.DONE


class _Interruption:
    """What signals do to a run."""

    def __init__(self, rollout: Session, work: asyncio.Task[ExitCode], *, grace_s: float) -> None:
        self._rollout = rollout
        self._work = work
        self._grace_s = grace_s
        self._loop = asyncio.get_running_loop()
        self._first: float | None = None
        self._heard: list[int] = []

    @property
    def came(self) -> bool:
        """Whether there was a signal."""
        return self._first is not None

    def listen(self) -> None:
        """Take the signals, but no SIGHUP where it is ignored, as by `nohup`.

        The handlers are not the loop's: those give way to the default action, which is death, when
        the loop is closed.
        """
        for number in _SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._heard.append(number)
            signal.signal(number, lambda n, _: self._loop.call_soon_threadsafe(self._on_signal, n))

    def ignore_more(self) -> None:
        """Let no signal cut short what the process still has to say."""
        for number in self._heard:
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGHUP:
            _mute_terminal()
        if self._first is not None:
            if self._loop.time() - self._first > _ECHO_S:
                self._leave_at_once()
            return
        self._first = self._loop.time()
        self._work.cancel()
        self._loop.call_later(self._grace_s, self._leave_at_once)
        with contextlib.suppress(OSError):
            typer.echo("ending; Ctrl-C again leaves at once", err=True)

    def _leave_at_once(self) -> None:
        self._rollout.abandon()
        os._exit(ExitCode.INTERRUPTED)


def _mute_terminal() -> None:
    """Send to nowhere what is still said to a terminal that hung up; writing to it is an error."""
    with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:  # noqa: PTH123  # a device
        for fd in (1, 2):
            if stat.S_ISCHR(os.fstat(fd).st_mode):
                os.dup2(nowhere.fileno(), fd)
