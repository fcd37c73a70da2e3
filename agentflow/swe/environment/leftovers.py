"""Leftovers: processes of an unsandboxed environment that lost their supervisor.

A command without a sandbox can kill the worker that watches it and the worker's parent; its
processes then hang on init. They are known by a variable that each of them inherits, or by a
directory inside the environment's. Best effort: one that drops its variables, leaves the
directory and outlives its parent is not found. Blocking but for `end_leftovers`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.swe.environment.supervisor import (
    KILL_PATIENCE_S,
    children_by_parent,
    signal_all,
)

if TYPE_CHECKING:
    from agentflow.protocols import Runner

log = logging.getLogger(__name__)

MARK = "AGENTFLOW_ENVIRONMENT"
"""Variable of every unsandboxed command; its value is the environment's directory."""

LOOK_AGAIN_S = 0.01
"""Between two looks at /proc, each of which takes milliseconds."""

LOOKS = int(KILL_PATIENCE_S / LOOK_AGAIN_S)
"""A killed process that is still there after so many hangs in the kernel."""

ROUNDS = 100
"""Of stopping, before killing what was found: against one that forks faster than it is stopped."""


async def end_leftovers(directory: Path, runner: Runner) -> None:
    """Kill the processes that belong to `directory` and wait until they are dead."""
    for _ in range(LOOKS):
        if not await runner.to_thread(kill_leftovers, directory):
            return
        await asyncio.sleep(LOOK_AGAIN_S)
    log.warning("%s: a process survived SIGKILL", directory)


def kill_leftovers(directory: Path) -> bool:
    """Kill what belongs to an environment in `directory` or at it; False if nothing does.

    Stops them until nothing new appears, then kills, so that none forks away meanwhile.
    """
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        new = _with_descendants(_belonging(directory)) - stopped
        if not new:
            break
        signal_all(new, signal.SIGSTOP)
        stopped |= new
    signal_all(stopped, signal.SIGKILL)
    return bool(stopped)


def _belonging(directory: Path) -> set[int]:
    """Processes with the mark, and those that stand in the directory without a terminal.

    A person who looks around there has a terminal, and is left alone.
    """
    own = {os.getpid(), os.getppid()}
    pids = {int(name) for name in os.listdir("/proc") if name.isdigit()}  # noqa: PTH208  # names
    return {
        pid
        for pid in pids - own
        if _is_marked(pid, directory) or (_stands_in(pid, directory) and not _has_terminal(pid))
    }


def _is_marked(pid: int, directory: Path) -> bool:
    with suppress(OSError):  # gone, or another user's
        variables = b"\0" + Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
        mark = b"\0" + os.fsencode(f"{MARK}={directory}")
        return mark + b"\0" in variables or mark + b"/" in variables
    return False


def _stands_in(pid: int, directory: Path) -> bool:
    for link in ("cwd", "root"):
        with suppress(OSError):
            place = os.readlink(f"/proc/{pid}/{link}").removesuffix(" (deleted)")  # noqa: PTH115  # speed
            if place == os.fspath(directory) or place.startswith(f"{directory}/"):
                return True
    return False


def _has_terminal(pid: int) -> bool:
    with suppress(OSError):
        # The name in brackets may hold anything; what follows its last bracket is plain.
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return fields[4] != b"0"
    return False


def _with_descendants(pids: set[int]) -> set[int]:
    if not pids:
        return pids
    table = children_by_parent()
    found, todo = set(pids), list(pids)
    while todo:
        new = set(table.get(todo.pop(), ())) - found
        found |= new
        todo += new
    return found
