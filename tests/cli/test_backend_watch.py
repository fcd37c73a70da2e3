"""A RolloutBackend that keeps a run directory is watched like a run."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import parts
import pytest
from watched import scrape

from agentflow.config_loading import Sources, check
from agentflow.errors import ConfigError
from executors.backend import BackendFailed, RolloutBackend
from executors.watching.run_look import RunLook, Standing

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.config import AgentflowConfig

BY_ACTION = {"enable_action_level_scheduling": True}


def make_backend(config: AgentflowConfig) -> RolloutBackend:
    """Make a backend of the plugged-in parts."""
    return RolloutBackend(config, make_engine=parts.make_engine, load_tasks=parts.make_tasks)


async def test_a_backend_is_scraped_and_its_numbers_are_its_summarys(tmp_path: Path) -> None:
    """Phases of the trainer's weight update and the version that it said are there as well."""
    out = tmp_path / "run"
    config = parts.make_config(out, rollout=BY_ACTION, observe={"metrics_port": 0})
    async with make_backend(config) as backend:
        await backend.step(backend.tasks[:2], n=2)
        await backend.pause()
        backend.weights_updated(2)
        await backend.resume()
        assert len(await backend.step(backend.tasks[2:], n=2)) == 1
        look = RunLook(out)
        assert look.standing is Standing.RUNNING
        assert backend._parts is not None
        assert backend._parts.watch is not None
        scraped = await asyncio.to_thread(scrape, str(backend._parts.watch.url))
    assert scraped["agentflow_weight_version"] == 2.0
    assert scraped["agentflow_weight_sync_seconds_count{phase=update}"] == 1.0
    assert scraped["agentflow_episodes{doing=ended}"] == 6.0
    look.refresh()
    summary = json.loads((out / "summary.json").read_text())
    assert look.standing is Standing.DONE
    assert look.state.doing["ended"] == summary["episodes"] == 6
    assert look.state.tokens["received"] == summary["tokens"]["received"]
    assert look.state.tokens["delivered"] == summary["tokens"]["delivered"]
    assert (out / "trace.json").exists()


async def test_a_stall_fails_the_backend_and_names_who_stands_still(tmp_path: Path) -> None:
    """Whoever waits for a group hears of it."""
    config = parts.make_config(
        tmp_path / "run", environment={"hang": True}, rollout={"stall_s": 0.3, **BY_ACTION}
    )
    async with make_backend(config) as backend:
        with pytest.raises(BackendFailed, match=r"nothing has happened for .*: task/0#0 command"):
            await backend.step(backend.tasks[:1])
    assert not parts.LIVE


def test_metrics_of_a_backend_need_a_run_directory() -> None:
    """They are made from its events."""
    values = {"engine": {"url": "parts"}, "observe": {"metrics_port": 9100}}
    with pytest.raises(ConfigError, match=r"metrics_port: 9100: .* set run.out as well"):
        make_backend(check(Sources(values=values)))
