"""RolloutWorker: one engine replica's executor, on a thread of its own.

Owns which executor drives the replica's flow, and its lease, which it renews as long as its thread
turns: when it ends, however it ends, what it still had goes back to the coordinator. In-process; an
actor is a shell over it.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from agentflow.aio import beside
from agentflow.errors import ConfigError
from agentflow.naive_flow import NaiveFlow
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from executors.agentic import ActionLevelFlow, AgenticExecutor
from executors.naive import NaiveExecutor
from executors.scheduling import make_settings
from executors.source import WorkerSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.config import RolloutConfig
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.protocols import AgentFlow, Runner
    from agentflow.types import SyncMode
    from executors.data.coordinator import DataCoordinator

_RENEWALS = 4
"""Within the time of one lease."""

Executor = NaiveExecutor | AgenticExecutor


class RolloutWorker:
    """Runs the samples of `coordinator` through `flow`."""

    def __init__(
        self,
        name: str,
        *,
        flow: AgentFlow,
        coordinator: DataCoordinator,
        renderer: ChatRenderer,
        runner: Runner,
        config: RolloutConfig,
        alone: bool = True,
    ) -> None:
        """`name` is used once: a worker that was given up comes back under another.

        `alone` says that no other takes samples beside it; `config` has its own share of limits.
        Raises ConfigError when the flow cannot be scheduled as `config` says.
        """
        self.name = name
        self.flow = flow
        self._coordinator = coordinator
        self._renderer = renderer
        self._runner = runner
        self.config = config
        self._alone = alone
        self.executor = self._build_executor()
        coordinator.on_withdrawn(name, self.executor.withdraw)
        if not alone:
            coordinator.share_among(name, self.executor.slots)

    def _build_executor(self) -> Executor:
        source = WorkerSource(self._coordinator, self.name)
        config = self.config
        if not config.enable_action_level_scheduling:
            if isinstance(self.flow, ActionLevelSWEAgentFlow):
                raise ConfigError(
                    "flow.name: this flow schedules actions; it needs"
                    " rollout.enable_action_level_scheduling: true"
                )
            return NaiveExecutor(
                NaiveFlow(self.flow, runner=self._runner, partial_rollout=config.partial_rollout),
                source,
                renderer=self._renderer,
                max_concurrency=config.max_concurrency,
            )
        return AgenticExecutor(
            _schedulable(self.flow),
            source,
            renderer=self._renderer,
            runner=self._runner,
            settings=make_settings(config, alone=self._alone),
            get_priority_snapshot=self._coordinator.get_priority_snapshot,
        )

    async def run(self) -> None:
        """Run the executor on this worker's thread until no sample is left, or `stop`."""
        await self._runner.on_worker(self.name, self.run_here())

    async def run_here(self) -> None:
        """The same on the caller's loop, as an actor of its own has one."""
        lease_s = self._coordinator.lease_s
        try:
            if lease_s is None:
                await self.executor.run()
            else:
                await beside(self.executor.run, [partial(self._renew, lease_s)])
        finally:
            self._coordinator.release_worker(self.name)

    async def _renew(self, lease_s: float) -> None:
        while True:
            self._coordinator.renew(self.name)
            await asyncio.sleep(lease_s / _RENEWALS)

    async def close(self) -> None:
        """Close the flow, and every environment that it still has. Idempotent."""
        await self._runner.on_flow_worker(self.flow.close())

    def stop(self) -> None:
        """Let `run` return once what has been started has ended. Callable from any thread."""
        self.executor.stop()
        if not self._alone:
            self._coordinator.share_among(self.name, 0)

    def gauges(self) -> dict[str, float]:
        """The executor's."""
        return self.executor.gauges()

    # --- weight updates (`Pausable`), callable from any thread --------------------------------

    def pause_dispatch(self) -> None:
        """Start no new sample."""
        self.executor.pause_dispatch()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        self.executor.resume_dispatch()

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start; return when the mode's condition for an update holds."""
        await self.executor.pause_generations(mode)

    async def resume_generations(self) -> None:
        """Dispatch generations again."""
        await self.executor.resume_generations()


async def run_all(workers: Sequence[RolloutWorker]) -> None:
    """Run every worker on its thread; one's bug ends all."""
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker.run(), name=f"worker {worker.name}")


def _schedulable(flow: AgentFlow) -> ActionLevelFlow:
    if not isinstance(flow, ActionLevelFlow):
        raise ConfigError(
            f"flow.name: {type(flow).__name__} cannot be scheduled action by action; it needs"
            " submit_sample and the rest of ActionLevelFlow, or"
            " rollout.enable_action_level_scheduling: false"
        )
    return flow
