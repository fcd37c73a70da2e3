"""RolloutWorker: one engine replica's executor, on a thread of its own.

Owns which executor drives the replica's flow, and its lease: when it ends, however it ends, what it
still had goes back to the coordinator. In-process; an actor is a shell over it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from agentflow.naive_flow import NaiveFlow
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from executors.agentic import ActionLevelFlow, AgenticExecutor
from executors.naive import NaiveExecutor
from executors.scheduling import make_settings
from executors.source import WorkerSource

if TYPE_CHECKING:
    from agentflow.config import RolloutConfig
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.protocols import AgentFlow, Runner
    from agentflow.types import SyncMode
    from executors.data.coordinator import DataCoordinator

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
    ) -> None:
        """`name` is used once: a worker that was given up comes back under another.

        Raises ConfigError when the flow cannot be scheduled as `config` says.
        """
        self.name = name
        self._flow = flow
        self._coordinator = coordinator
        self._renderer = renderer
        self._runner = runner
        self._config = config
        self.executor = self._build_executor()
        coordinator.on_withdrawn(name, self.executor.withdraw)

    def _build_executor(self) -> Executor:
        source = WorkerSource(self._coordinator, self.name)
        config = self._config
        if not config.enable_action_level_scheduling:
            if isinstance(self._flow, ActionLevelSWEAgentFlow):
                raise ConfigError(
                    "flow.name: this flow schedules actions; it needs"
                    " rollout.enable_action_level_scheduling: true"
                )
            return NaiveExecutor(
                NaiveFlow(self._flow, runner=self._runner, partial_rollout=config.partial_rollout),
                source,
                renderer=self._renderer,
                max_concurrency=config.max_concurrency,
            )
        return AgenticExecutor(
            _schedulable(self._flow),
            source,
            renderer=self._renderer,
            runner=self._runner,
            settings=make_settings(config),
            get_priority_snapshot=self._coordinator.get_priority_snapshot,
        )

    async def run(self) -> None:
        """Run the executor on this worker's thread until no sample is left, or `stop`."""
        await self._runner.on_worker(self.name, self.run_here())

    async def run_here(self) -> None:
        """The same on the caller's loop, for a process that has only one worker."""
        try:
            await self.executor.run()
        finally:
            self._coordinator.release_worker(self.name)

    def stop(self) -> None:
        """Let `run` return once what has been started has ended. Callable from any thread."""
        self.executor.stop()

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


def _schedulable(flow: AgentFlow) -> ActionLevelFlow:
    if not isinstance(flow, ActionLevelFlow):
        raise ConfigError(
            f"flow.name: {type(flow).__name__} cannot be scheduled action by action; it needs"
            " submit_sample and the rest of ActionLevelFlow, or"
            " rollout.enable_action_level_scheduling: false"
        )
    return flow
