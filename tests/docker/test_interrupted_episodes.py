"""Weight updates over episodes in containers, which wait under a lease or are replaced."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker, our_containers
from plugins import new_sample
from test_action_level_flow import Stage, SteppedEngine, run

from agentflow.errors import RolloutGenerationAborted
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
    from agentflow.types import RolloutSample

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]


class Interrupted:
    """A flow over containers, with one episode that a weight update has just interrupted."""

    def __init__(self, folder: Path, **settings: object) -> None:
        self.stage, self.engine = Stage(), SteppedEngine()
        self.builder = DockerEnvBuilder({"pids": 64, "memory_bytes": 64 << 20, **settings})
        self.stage.engine, self.stage.envs = self.engine, self.builder  # type: ignore[assignment]
        self.flow: ActionLevelSWEAgentFlow = self.stage.flow()
        self.sample: RolloutSample = new_sample()
        self._leases = folder / "docker" / "leases"

    async def interrupt(self) -> str:
        """Run the episode into its first generation, and an update over it; its container."""
        running = asyncio.ensure_future(run(self.flow, self.sample))
        await self.engine.until(1)
        await self.flow.pause_generations(SyncMode.ABORT)
        with pytest.raises(RolloutGenerationAborted):
            await running
        await self.flow.resume_generations()
        (lease,) = self.flow._envs.leases.values()
        return str(lease.container)

    def lease(self) -> dict[str, object]:
        """The one lease of this machine."""
        (file,) = self._leases.glob("*.json")
        facts: dict[str, object] = json.loads(file.read_text())
        return facts

    async def resume(self) -> RolloutSample:
        """Run the next attempt to its end."""
        going = asyncio.ensure_future(run(self.flow, self.sample))
        for turn in (1, 2):
            (rid,) = await self.engine.until(1)
            self.engine.waiting[rid].set_result(True)
            if turn == 1:
                await asyncio.wait({going}, timeout=0)
        return await going


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Leases of these tests are nobody else's."""
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    return tmp_path


async def test_a_container_waits_under_a_lease(cache: Path) -> None:
    """No sweep takes it, it lives as long as told, and the next attempt goes on in it."""
    world = Interrupted(cache, lease_s=600)
    name = await world.interrupt()
    lease = world.lease()
    assert (lease["container"], lease["holder"]) == (name, None)
    left_s = float(str(lease["expires_at"])) - AsyncioRunner().wall_time()
    assert 500 < left_s <= 600
    assert (await clean()).containers == ()
    assert (await world.resume()).rewards == 1.0
    assert name not in our_containers()
    await world.flow.close()


async def test_a_lost_container_restarts_its_episode_clean(cache: Path) -> None:
    """And the restart is told."""
    world = Interrupted(cache)
    docker("rm", "-f", await world.interrupt())
    assert (await world.resume()).rewards == 1.0
    assert "restarted_clean" in world.stage.events.kinds()
    await world.flow.close()


async def test_a_lost_container_comes_back_from_its_snapshot(cache: Path) -> None:
    """Where snapshots are on, the episode goes on; nothing of the image is left afterwards."""
    world = Interrupted(cache, snapshot=True)
    docker("rm", "-f", await world.interrupt())
    assert (await world.resume()).rewards == 1.0
    assert "restarted_clean" not in world.stage.events.kinds()
    await world.flow.close()
    for file in (cache / "docker" / "leases").glob("*.json"):
        file.unlink()
    assert len((await clean()).images) == 1


async def test_a_closed_flow_leaves_nothing(cache: Path) -> None:
    """Interrupted episodes that never went on go with their flow."""
    world = Interrupted(cache, snapshot=True)
    name = await world.interrupt()
    await world.flow.close()
    assert name not in our_containers()
    assert (await clean()).images == ()
