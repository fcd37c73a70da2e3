"""A training run's folder, and processes in it that end or are killed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import scheduler_parts as parts

from agentflow.runner import AsyncioRunner
from executors.task_scheduler import (
    SchedulerArgs,
    SchedulerRolloutManager,
)
from executors.task_scheduler.partial_checkpoint import PartialCheckpoint
from executors.task_scheduler.stores import JsonStore

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample
    from executors.runs.files import FolderLock
    from executors.task_scheduler.rollout_manager import RolloutStep


class Run:
    """A training run's folder, and a new process in it each time: the last one is dead then."""

    def __init__(self, folder: Path, **args: Any) -> None:
        self.folder = folder
        self.args = SchedulerArgs(save=str(folder), rollout_batch_size=3, **args)
        self.environ: dict[str, str] = {}
        self.store = JsonStore()
        self.lock: FolderLock | None = None

    def manager(
        self, handler: parts.Handler | None = None, *, source: Any = None
    ) -> SchedulerRolloutManager:
        """Start a process."""
        if self.lock is not None:
            self.lock.release()
        it = parts.scheduler(
            parts.spec(handler, batch_size=1),
            args=self.args,
            source=source or parts.source(AsyncioRunner(), n=2),
            checkpoint=PartialCheckpoint.of(self.args, store=self.store),
        )
        made = SchedulerRolloutManager(it, args=self.args, store=self.store, environ=self.environ)
        assert made._files is not None
        self.lock = made._files.lock
        return made

    def files(self) -> list[str]:
        """List the trajectory files."""
        return sorted(path.name for path in self.folder.glob("trajectory*"))


def uids(step: RolloutStep) -> list[str]:
    """Name a step's prompts."""
    return [group[0].episode.uid for group in step.groups]


async def killed(run: Run, *, after: int, rollout_id: int) -> parts.Handler:
    """Run a process that dies when `after` groups have ended."""
    hang, reached, armed = asyncio.Event(), asyncio.Event(), False

    async def behave(sample: RolloutSample, _: object) -> None:
        if armed and len({name.partition("#")[0] for name in handler.order}) > after:
            reached.set()
            await hang.wait()

    handler = parts.Handler(behave=behave)
    manager = run.manager(handler)
    for done in range(rollout_id):
        await manager.generate(done)
        handler.order.clear()
    armed = True
    async with asyncio.TaskGroup() as group:
        work = group.create_task(manager.generate(rollout_id))
        await reached.wait()
        work.cancel()
    return handler
