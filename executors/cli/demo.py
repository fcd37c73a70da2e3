"""`agentflow demo`: the main job on embedded defaults, done and left undone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from agentflow.config_loading import load_config
from executors.cli import report, running
from executors.cli.exits import ExitCode
from executors.runs.session import Rollout

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.types import RolloutSample

TASKS = "bundled,pypi"
POLICIES = {"oracle": 1.0, "noop": 0.0}
"""Scripted policy → the reward that every one of its episodes must get."""


def run(out: Path) -> ExitCode:
    """Roll out every task that ships with each policy, and compare. Raises AgentflowError."""
    results: dict[str, list[RolloutSample]] = {}
    for policy in POLICIES:
        options = {
            "--tasks": (("tasks", "source"), TASKS),
            "--engine": (("engine", "url"), f"scripted:{policy}"),
            "--out": (("run", "out"), str(out / policy)),
        }
        config = load_config(None, options=options, assignments=())
        watcher = report.make_watcher()
        report.headline(f"{policy}: {TASKS} into {out / policy}")
        rollout = Rollout(config, argv=sys.argv, watcher=watcher)
        code = running.run(rollout, grace_s=config.rollout.stop_grace_s, watcher=watcher)
        if code is not ExitCode.DONE:
            return code
        results[policy] = watcher.samples
    report.print_comparison(results)
    as_expected = all(
        sample.rewards == reward
        for policy, reward in POLICIES.items()
        for sample in results[policy]
    )
    return ExitCode.DONE if as_expected else ExitCode.FAILED
