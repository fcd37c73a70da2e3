"""A run that takes its time, so that it can be killed anywhere; argv: new|resume, OUT, SCRATCH."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from agentflow.config_loading import load_config
from agentflow.engine.model_folder import bundled_model_folder
from agentflow.engine.scripted import ScriptedSettings
from agentflow.engine.scripted_spec import scripted_engine
from executors.cli import report, running
from executors.data.resuming import is_done, resumed_config
from executors.runs.session import Rollout
from executors.wiring import build_engine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess

PACE = ScriptedSettings(tokens_per_s=400.0, chunk_tokens=8)


def paced(config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
    """Make the configured engine, slow enough that kills meet generations."""
    engine = scripted_engine(
        str(config.engine.url), list(tasks), folder=bundled_model_folder(), settings=PACE
    )
    return replace(build_engine(config, tasks), engine=engine)


def configured(out: str, scratch: str) -> AgentflowConfig:
    """Configure the run."""
    values = [
        "tasks.source=bundled",
        "tasks.limit=5",
        "engine.url=scripted:noisy:3",
        f"run.out={out}",
        "run.n=2",
        "rollout.enable_action_level_scheduling=true",
        "rollout.max_concurrency=4",
        "rollout.journal=true",
        f"flow.environment.scratch_dir={scratch}",
    ]
    return load_config(assignments=values)


def main() -> int:
    """Run, and return the exit code."""
    what, out, scratch = sys.argv[1:]
    resume = what == "resume"
    config = resumed_config(Path(out)) if resume else configured(out, scratch)
    if resume and is_done(Path(out)):
        typer.echo("nothing is left to do")
        return 0
    watcher = report.make_watcher()
    rollout = Rollout(config, watcher=watcher, make_engine=paced, resume=resume)
    return running.run(rollout, grace_s=20.0, watcher=watcher)


if __name__ == "__main__":
    sys.exit(main())
