"""What everything waits for at this moment: the stack of each asyncio task and of each thread."""

from __future__ import annotations

import asyncio
import sys
import threading
import traceback
from typing import Any


def tell_stacks(why: str) -> None:
    """Write them all to stderr, for a wait that has taken too long."""
    sys.stderr.write(f"{why}, while this waits:\n{all_stacks()}\n")


def name_this_task(name: str) -> None:
    """Say what the running task is there for."""
    task = asyncio.current_task()
    assert task is not None, "no task runs"
    task.set_name(name)


def all_stacks() -> str:
    """Show every task of the running loop, and every thread, as text."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    tasks = sorted(asyncio.all_tasks(), key=asyncio.Task.get_name)
    return "\n".join(
        [
            *(f"task {task.get_name()}:\n{_awaits(task.get_coro())}" for task in tasks),
            *(
                f"thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
                for ident, frame in sys._current_frames().items()
            ),
        ]
    )


def _awaits(coroutine: Any) -> str:
    """Follow what awaits what; `Task.print_stack` shows the outermost alone."""
    lines: list[str] = []
    while coroutine is not None:
        kind = next((k for k in ("cr", "gi", "ag") if hasattr(coroutine, f"{k}_frame")), None)
        if kind is None:
            return "".join([*lines, f"  at {coroutine!r}\n"])
        if (frame := getattr(coroutine, f"{kind}_frame")) is not None:
            lines += traceback.format_list(
                traceback.StackSummary.extract(iter([(frame, frame.f_lineno)]))
            )
        coroutine = getattr(coroutine, "gi_yieldfrom" if kind == "gi" else f"{kind}_await")
    return "".join(lines)
