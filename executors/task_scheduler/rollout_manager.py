"""SchedulerRolloutManager: a training loop's view of the scheduler. A plain class; see ray_actors.

generate(i):  fresh ─▶ TaskScheduler ─▶ rejection ─▶ finish-only ─▶ trajectory file ─▶ trainer
              reuse ─▶ trajectory file ──────────────────────────────────────────────▶ trainer
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from executors.task_scheduler.filters import apply_filters
from executors.task_scheduler.reuse import Origin, TrajectoryFiles, Variables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.types import RolloutSample
    from executors.task_scheduler.args import SchedulerArgs
    from executors.task_scheduler.eval_metrics import EvalResult
    from executors.task_scheduler.scheduler import TaskScheduler
    from executors.task_scheduler.stores import Store

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStep:
    """What a trainer gets for one step."""

    rollout_id: int
    origin: Origin
    groups: list[list[RolloutSample]]
    rejected: int = 0
    unfinished: int = 0


class SchedulerRolloutManager:
    """Rolls out, filters, saves, and reuses."""

    def __init__(
        self,
        scheduler: TaskScheduler,
        *,
        args: SchedulerArgs,
        store: Store | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """Trajectory files need `--save` and a store. Raises ConfigError when one is missing."""
        if (args.save is None) != (store is None):
            raise ConfigError("trajectory files need both --save, the folder, and a store")
        self._scheduler = scheduler
        self._args = args
        self._environ = os.environ if environ is None else environ
        self._files: TrajectoryFiles | None = None
        if args.save is not None and store is not None:
            self._files = TrajectoryFiles(Path(args.save), store=store)

    async def generate(self, rollout_id: int) -> RolloutStep:
        """Give the samples of one training step. Raises ConfigError, OutputError.

        A step that no sample survived is not saved: there is nothing in it to reuse.
        """
        variables = Variables.read(self._environ)
        if self._files is None:
            if variables.reuse or variables.per_iter_dir:
                raise ConfigError("reusing trajectories needs --save: the folder they are in")
            return await self._fresh(rollout_id)
        origin, path = self._files.choose(rollout_id, variables)
        if path is not None:
            groups = self._files.load(path)
            return RolloutStep(rollout_id=rollout_id, origin=origin, groups=groups)
        self._files.lock.take()
        step = await self._fresh(rollout_id)
        if step.groups:
            self._files.save(rollout_id, step.groups, per_iter=variables.save_per_iter)
        return step

    async def _fresh(self, rollout_id: int) -> RolloutStep:
        groups = await self._scheduler.execute_rollout(rollout_id)
        filtered = apply_filters(
            groups,
            min_reward=self._args.rejection_min_reward,
            finish_only=self._args.finish_only,
        )
        if not filtered.groups:
            logger.warning(
                "rollout %d gives nothing to train on: %d samples were rejected, %d unfinished",
                rollout_id,
                filtered.rejected,
                filtered.unfinished,
            )
        return RolloutStep(
            rollout_id=rollout_id,
            origin=Origin.FRESH,
            groups=filtered.groups,
            rejected=filtered.rejected,
            unfinished=filtered.unfinished,
        )

    async def eval(self, rollout_id: int) -> EvalResult:
        """Evaluate on every evaluation data set."""
        return await self._scheduler.execute_eval(rollout_id)

    def pause(self) -> None:
        """Let nothing start, for example during a weight update."""
        self._scheduler.pause_dispatch()

    def resume(self) -> None:
        """Go on."""
        self._scheduler.resume_dispatch()

    async def close(self) -> None:
        """Close the scheduler's handlers, and let others into the folder."""
        await self._scheduler.close()
        if self._files is not None:
            self._files.lock.release()
