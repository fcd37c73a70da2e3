"""The one error boundary, work that cancellation may not cut short, and work beside work."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentflow.errors import AgentflowError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from agentflow.errors import EpisodeError

T = TypeVar("T")

SHIELDED = "shielded"
"""Name of the tasks that do such work; only `shielded` holds them."""


class boundary:  # noqa: N801  # reads as the statement that it is
    """Name what escapes from a plug-in or the outside world; agentflow's own errors pass.

    This is the only place that catches `Exception`: whatever a part outside our control raises
    ends its episode as `error`, with the original as its cause.
    """

    __slots__ = ("_error",)

    def __init__(self, error: type[EpisodeError]) -> None:
        self._error = error

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, exc: BaseException | None, _tb: object) -> None:
        if isinstance(exc, Exception) and not isinstance(exc, AgentflowError):
            raise self._error(f"{type(exc).__name__}: {exc}") from exc


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await `work` to its end even when cancelled meanwhile, also repeatedly; then raise that."""
    loop = asyncio.get_running_loop()
    task = loop.create_task(work, name=SHIELDED)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        ended: asyncio.Future[None] = loop.create_future()
        task.add_done_callback(partial(_tell, ended))
        try:
            await ended  # unlike the task itself, it may be cancelled
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        if not task.cancelled() and (failure := task.exception()) is not None:
            raise cancelled from failure
        raise cancelled
    return task.result()


def _tell(ended: asyncio.Future[None], _task: object) -> None:
    if not ended.done():
        ended.set_result(None)


async def beside(
    work: Callable[[], Awaitable[None]], others: Sequence[Callable[[], Awaitable[None]]]
) -> None:
    """Do `work`, and `others` as long as that takes; the first failure ends them all."""
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(_awaited(other), name="beside the work") for other in others]
        await work()
        for task in running:
            task.cancel()


async def _awaited(call: Callable[[], Awaitable[None]]) -> None:
    await call()
