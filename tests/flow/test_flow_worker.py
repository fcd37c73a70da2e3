"""AsyncioRunner.on_flow_worker: work on another thread's loop, ended from this one."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

import pytest

from agentflow.runner import AsyncioRunner

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def runner() -> Iterator[AsyncioRunner]:
    """Make a runner and end its threads."""
    made = AsyncioRunner()
    yield made
    made.close()


async def test_results_and_errors_come_back(runner: AsyncioRunner) -> None:
    """From a thread of its own."""

    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise ZeroDivisionError

    assert await runner.on_flow_worker(name()) == "agentflow-flow-worker"
    with pytest.raises(ZeroDivisionError):
        await runner.on_flow_worker(fail())


async def test_a_cancelled_wait_ends_when_the_work_has_cleaned_up(runner: AsyncioRunner) -> None:
    """Also when it is cancelled again while the cleaning goes on."""
    here, began = asyncio.get_running_loop(), asyncio.Event()
    steps: list[str] = []
    may_end = threading.Event()

    async def work() -> None:
        here.call_soon_threadsafe(began.set)
        try:
            await asyncio.Event().wait()
        finally:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0)
            may_end.wait(timeout=10)
            steps.append("cleaned up")

    waiter = asyncio.create_task(runner.on_flow_worker(work()))
    await began.wait()
    for _ in range(2):
        waiter.cancel()
        await asyncio.sleep(0)
        assert not waiter.done()
    may_end.set()
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert steps == ["cleaned up"]
