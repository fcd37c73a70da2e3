"""The actor is a shell: it passes calls on, in a process of its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import scheduler_parts as parts

from agentflow.runner import AsyncioRunner
from executors.task_scheduler import EvalDataset, SchedulerArgs, SchedulerRolloutManager
from executors.task_scheduler.ray_actors import (
    SchedulerRolloutManagerShell,
    rollout_manager_actor,
)


def make_manager() -> SchedulerRolloutManager:
    """Make a manager over instant handlers."""
    args = SchedulerArgs(rollout_batch_size=2)
    it = parts.scheduler(
        args=args,
        source=parts.source(AsyncioRunner(), n=2),
        eval_datasets=[EvalDataset(name="A", rows=parts.rows(3))],
    )
    return SchedulerRolloutManager(it, args=args, environ={})


async def test_the_shell_passes_calls_on() -> None:
    """Without Ray it is a plain object."""
    shell = SchedulerRolloutManagerShell(make_manager)
    await shell.pause()
    await shell.resume()
    assert len((await shell.generate(0)).groups) == 2
    assert (await shell.eval(0)).metrics["eval/A/accuracy"] == 1.0
    await shell.close()


@pytest.mark.ray
def test_the_actor_gives_what_the_manager_gives() -> None:
    """Steps and metrics cross the process boundary whole."""
    import ray  # noqa: PLC0415  # of this marker

    folder = Path(__file__).parent
    path = os.pathsep.join([str(folder), str(folder.parent.parent)])
    ray.init(
        num_cpus=1,
        include_dashboard=False,
        configure_logging=False,
        runtime_env={"env_vars": {"PYTHONPATH": path}},
    )
    try:
        actor = rollout_manager_actor(make_manager, num_cpus=1)
        step = ray.get(actor.generate.remote(0))
        assert [len(group) for group in step.groups] == [2, 2]
        assert step.groups[0][0].responses.tolist() == [3, 4, 5]
        assert ray.get(actor.eval.remote(0)).metrics["eval/A/accuracy"] == 1.0
        ray.get(actor.close.remote())
    finally:
        ray.shutdown()
