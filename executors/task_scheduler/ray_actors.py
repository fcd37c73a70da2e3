"""The Ray actor around SchedulerRolloutManager: a shell, without a decision of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from executors.task_scheduler.eval_metrics import EvalResult
    from executors.task_scheduler.rollout_manager import RolloutStep, SchedulerRolloutManager


class SchedulerRolloutManagerShell:
    """Passes calls on to a manager that was made in the actor's own process."""

    def __init__(self, make_manager: Callable[[], SchedulerRolloutManager]) -> None:
        self._manager = make_manager()

    async def generate(self, rollout_id: int) -> RolloutStep:
        """Give the samples of one training step."""
        return await self._manager.generate(rollout_id)

    async def eval(self, rollout_id: int) -> EvalResult:
        """Give the metrics and samples of an evaluation."""
        return await self._manager.eval(rollout_id)

    async def pause(self) -> None:
        """Let nothing start."""
        self._manager.pause()

    async def resume(self) -> None:
        """Go on."""
        self._manager.resume()

    async def close(self) -> None:
        """Close the manager."""
        await self._manager.close()


def rollout_manager_actor(
    make_manager: Callable[[], SchedulerRolloutManager], **options: Any
) -> Any:
    """Start the actor; `options` are Ray's own (`num_cpus`, `name`, …). It holds no GPU."""
    import ray  # noqa: PLC0415  # optional, and heavy

    actor = ray.remote(SchedulerRolloutManagerShell)
    return actor.options(**{"num_gpus": 0, **options}).remote(make_manager)
