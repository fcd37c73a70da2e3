"""TurnWorkers: the two workers that give the episodes of a flow their turns.

Owns the pure scheduler, the episodes that it knows, and the event that every move sets. Never takes
a turn itself, and never looks into one. Without its workers everybody would wait for ever: what
ends one reaches every episode.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.errors import WorkerCancelled
from agentflow.scheduling import ActionScheduler, Event, Stage
from agentflow.swe.kv_housing import KVHousing
from agentflow.swe.work_beside import WorkBeside
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from agentflow.protocols import Model, Runner
    from agentflow.scheduling import WorkItem
    from agentflow.swe.live_episode import LiveEpisode
    from agentflow.swe.scheduling_hooks import Scheduling


class TurnWorkers:
    """Turns, by the scheduler's decisions; on the flow worker's loop."""

    def __init__(self, scheduling: Scheduling, engine: Model, runner: Runner) -> None:
        self._engine = engine
        self._runner = runner
        self.core = ActionScheduler(scheduling.limits, scheduling.policy)
        share = scheduling.kv_share
        self.housing = self.core.housing = None if share is None else KVHousing(share=share)
        self.episodes: dict[WorkItem, LiveEpisode] = {}
        self.beside = WorkBeside(self.episodes)
        self.progress = 0
        """Counts up whenever an episode moves; readable on any thread."""
        self._moved = asyncio.Event()
        """Set by every move, and wakes all who wait in `_until_moved` then."""
        self._workers: list[asyncio.Task[None]] = []
        self._closed = False
        self._broken: BaseException | None = None
        """What ended a worker."""

    def ensure(self) -> asyncio.AbstractEventLoop:
        """Have the workers run, and give their loop. Raises what ended one of them."""
        if self._closed:
            raise RuntimeError("this flow is closed; make a new one")
        if self._broken is not None:
            raise self._broken
        loop = asyncio.get_running_loop()
        if not self._workers:
            self._workers = [
                loop.create_task(self._processor_worker(), name="processor"),
                loop.create_task(self._interaction_worker(), name="interaction"),
            ]
            for worker in self._workers:
                worker.add_done_callback(self._worker_ended)
        return loop

    def enter(self, episode: LiveEpisode) -> None:
        """Give turns to an episode from now on."""
        self.episodes[episode.item] = episode
        self._moved.set()

    def leave(self, episode: LiveEpisode) -> None:
        """Forget an episode, which has ended."""
        del self.episodes[episode.item]
        self._moved.set()

    def advance(self, item: WorkItem, event: Event) -> None:
        """Tell the scheduler what happened to an episode."""
        self.core.advance(item, event, self._runner.now())
        self.progress += 1
        self._moved.set()

    # --- the workers --------------------------------------------------------------------------

    async def _processor_worker(self) -> None:
        """Give generation turns, and have generations aborted for those that must not wait."""
        if self.housing is not None:
            await self.housing.learn_size(self._engine)
        while True:
            now = self._runner.now()
            for item in self.core.generate(now):
                self._give_turn(item)
            for item in self.core.preempt(now):
                self.beside.abort(self.episodes[item])
            await self._until_moved()

    async def _interaction_worker(self) -> None:
        """Give turns to what needs an environment: starts, commands, rewards."""
        while True:
            for item in self.core.interact(self._runner.now()):
                self._give_turn(item)
            await self._until_moved()

    def _worker_ended(self, worker: asyncio.Task[None]) -> None:
        bug = WorkerCancelled(worker.get_name()) if worker.cancelled() else worker.exception()
        assert bug is not None, "workers never return"
        if self._closed:
            return
        self._broken = bug
        for episode in self.episodes.values():
            episode.end_by(bug)

    async def _until_moved(self) -> None:
        """Wait for the next move. Look before you wait: the first to wake clears the event."""
        await self._moved.wait()
        self._moved.clear()

    def _give_turn(self, item: WorkItem) -> None:
        turn = self.episodes[item].turn
        if not turn.done():  # or its caller has just gone, and it is about to be withdrawn
            turn.set_result(None)

    # --- pauses and the end -------------------------------------------------------------------

    async def pause(self, mode: SyncMode) -> None:
        """Give no generation turns; return when the mode's condition for an update holds."""
        self.core.paused = True
        if mode is SyncMode.ABORT:
            for item in self.core.interrupt_all():
                self.beside.abort(self.episodes[item])
        if mode in {SyncMode.ABORT, SyncMode.DRAIN}:
            while self.core.places[Stage.GENERATING]:
                await self._until_moved()

    async def resume(self) -> None:
        """Give generation turns again."""
        self.core.paused = False
        self._moved.set()

    async def close(self) -> None:
        """End every episode, then the workers and what runs beside. Idempotent."""
        self._closed = True
        for episode in self.episodes.values():
            episode.task.cancel()
        while self.episodes:
            await self._until_moved()
        for worker in self._workers:
            worker.cancel()
        if self._workers:
            await asyncio.wait(self._workers)
        self._workers.clear()
        await self.beside.close()
