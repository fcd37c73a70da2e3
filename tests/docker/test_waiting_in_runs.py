"""Waits of a run's containers: who waits for one is in view, and one that waits is frozen."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from docker_tools import PATIENCE_S, ROOT, docker

from agentflow.config_loading import Sources, check
from agentflow.engine.rids import episode_key
from agentflow.swe.environment.docker.owner import RUN_LABEL
from executors.runs.session import Rollout
from executors.wiring import build_engine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import Model, TokenSink
    from agentflow.types import GenerationRequest, GenerationResult

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

ATTRIBUTES = "{{json .Actor.Attributes}}"


class HeldModel:
    """A `Model` whose first generation begins when `look` has seen what it looks for."""

    def __init__(self, model: Model, look: Callable[[str], Awaitable[None]]) -> None:
        self._model = model
        self._look = look
        self._looking: str | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Let `look` look, told whose generation waits for it, then generate."""
        if self._looking is None:
            self._looking = episode_key(request.rid) or ""
            async with asyncio.timeout(PATIENCE_S):
                await self._look(self._looking)
        return await self._model.generate(request, sink)


async def run_and_look(
    out: Path, look: Callable[[str], Awaitable[None]], **sections: dict[str, Any]
) -> list[dict[str, Any]]:
    """Run two bundled tasks by their oracle, one generation at a time; returns the samples."""
    values = {
        "run": {"out": str(out)},
        "tasks": {"source": "bundled", "limit": 2},
        "engine": {"url": "scripted:oracle"},
        "observe": {"metrics_port": 0, "metrics_s": 0.05},
        "rollout": {
            "enable_action_level_scheduling": True,
            "max_concurrency": 2,
            "gen_concurrency": 1,
        },
        "flow": {"environment": {"name": "docker", **sections.get("environment", {})}},
    }

    def make(config: AgentflowConfig, rows: Sequence[Mapping[str, Any]]) -> EngineAccess:
        access = build_engine(config, rows)
        return dataclasses.replace(access, engine=HeldModel(access.engine, look))

    await Rollout(check(Sources(values=values)), make_engine=make).run()
    return [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]


async def first_status(out: Path, good: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Watch a run by `agentflow status` until it tells what is looked for."""
    command = ("-m", "executors.cli", "status", "--watch", "--every", "0.05", "--json", str(out))
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, limit=1 << 20
    )
    assert process.stdout is not None
    try:
        async for line in process.stdout:
            status: dict[str, Any] = json.loads(line)
            if good(status):
                return status
    finally:
        process.kill()
        await process.wait()
    raise AssertionError


def scrape(url: str) -> str:
    """Read a run's metrics as Prometheus does."""
    with urllib.request.urlopen(url) as answer:
        text: str = answer.read().decode()
    return text


async def test_who_waits_for_a_container_is_in_view(tmp_path: Path) -> None:
    """Status, a scrape and metrics.jsonl tell the queue of a stage and how long it took."""
    out = tmp_path / "run"
    seen: dict[str, Any] = {}

    async def look(_: str) -> None:
        status = await first_status(
            out, lambda told: told["env_stages"].get("live", {}).get("waiting") == 1
        )
        seen["live"] = status["env_stages"]["live"]
        seen["scraped"] = await asyncio.to_thread(scrape, status["metrics_url"])
        told = [sys.executable, "-m", "executors.cli", "status", str(out)]
        seen["words"] = await asyncio.to_thread(subprocess.check_output, told, cwd=ROOT, text=True)

    await run_and_look(out, look, environment={"max_live": 1})
    assert (seen["live"]["limit"], seen["live"]["in_use"]) == (1, 1)
    assert 'agentflow_env_stage_waiting{stage="live"} 1.0' in seen["scraped"]
    assert "environments, live: 1 of 1 in use, 1 wait" in seen["words"]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    waiting = "agentflow_env_stage_waiting{stage=live}"
    assert any(line.get(waiting) == 1 for line in lines)
    assert lines[-1][waiting] == 0
    assert lines[-1]["agentflow_env_stage_acquired_total{stage=live}"] == 2
    assert lines[-1]["agentflow_env_stage_waited_seconds_total{stage=live}"] > 0
    assert lines[-1]["agentflow_env_stage_longest_wait_seconds{stage=live}"] > 0
    assert lines[-1]["agentflow_env_stage_acquired_total{stage=rewards}"] == 2


async def pause_of_another(run_id: str, key: str) -> str:
    """Wait until a container of a run is paused that is not the episode's; returns its name."""
    events = await asyncio.create_subprocess_exec(
        *("docker", "events", "--since", "0", "--filter", "event=pause", "--format", ATTRIBUTES),
        *("--filter", f"label={RUN_LABEL}={run_id}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert events.stdout is not None
    try:
        async for line in events.stdout:
            attributes: dict[str, str] = json.loads(line)
            if attributes["agentflow.episode"] != key:
                return attributes["name"]
    finally:
        events.kill()
        await events.wait()
    raise AssertionError


async def test_a_container_whose_episode_waits_for_the_engine_is_paused(tmp_path: Path) -> None:
    """While another episode has the only slot; it thaws for its own next command."""
    out = tmp_path / "run"
    paused: list[str] = []

    async def look(key: str) -> None:
        run_id = json.loads((out / "run.json").read_text())["id"]
        name = await pause_of_another(run_id, key)
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        begun = [event for event in events if event["kind"] == "generation_started"]
        assert len(begun) == 1  # the other's: this one waits for its first
        assert docker("inspect", "-f", "{{.State.Paused}}", name) == "true"
        paused.append(name)

    samples = await run_and_look(out, look, environment={"pause_after_s": 0.2})
    assert [sample["reward"] for sample in samples] == [1.0, 1.0]
    (name,) = paused
    ended = docker(
        *("events", "--since", "0", "--until", "0s", "--filter", f"container={name}"),
        *("--filter", "event=pause", "--filter", "event=unpause", "--format", "{{.Status}}"),
    )
    assert ended.split()[:2] == ["pause", "unpause"]


async def test_a_container_that_dies_while_its_episode_waits_costs_no_generation(
    tmp_path: Path,
) -> None:
    """The episode ends by it when its turn comes, before the engine is asked for a token."""
    out = tmp_path / "run"
    killed: list[str] = []

    async def look(key: str) -> None:
        run_id = json.loads((out / "run.json").read_text())["id"]
        name = await pause_of_another(run_id, key)
        docker("rm", "-f", name)
        killed.append(name)

    samples = await run_and_look(out, look, environment={"pause_after_s": 0.2})
    assert len(killed) == 1
    causes = {sample["cause"]: sample for sample in samples}
    assert set(causes) == {"submitted", "env_died"}
    assert causes["env_died"]["turns"] == 0
    assert causes["submitted"]["reward"] == 1.0
