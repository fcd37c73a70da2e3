"""An interrupted episode's environment: let go under a lease, taken back, given up, or lost."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from plugins import EnvBuilder, new_sample
from test_action_level_flow import Stage, SteppedEngine, run

from agentflow.errors import EnvDied, RolloutGenerationAborted
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from plugins import Env

    from agentflow.protocols import ContainerEnv
    from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
    from agentflow.types import RolloutSample


@dataclass
class LeasingBuilder(EnvBuilder):
    """Lets environments go by their names."""

    leased: dict[str, Env] = field(default_factory=dict)
    fail_detach: bool = False

    async def detach(self, env: Env) -> str:
        """Keep it under its name."""
        if self.fail_detach:
            raise EnvDied("died at its detach")
        self.leased[env.name] = env
        return env.name

    async def attach(self, lease: str) -> ContainerEnv:
        """Give it back."""
        if lease not in self.leased:
            raise EnvDied(f"{lease} is gone")
        return self.leased.pop(lease)

    def lease(self, env: Env) -> str:
        """Its name."""
        return env.name

    async def hold(self, lease: str, *, journal: str) -> None:
        """There is no journal."""
        raise AssertionError(journal)

    async def release(self, lease: str) -> None:
        """Remove it."""
        env = self.leased.pop(lease, None)
        if env is not None:
            await env.stop()


@dataclass
class Interrupted:
    """A flow with one episode that a weight update has just interrupted."""

    flow: ActionLevelSWEAgentFlow
    engine: SteppedEngine
    envs: LeasingBuilder
    stage: Stage
    sample: RolloutSample

    async def resume(self) -> RolloutSample:
        """Run the next attempt to its end."""
        going = asyncio.ensure_future(run(self.flow, self.sample))
        for _ in range(2):
            (rid,) = await self.engine.until(1)
            self.engine.waiting[rid].set_result(True)
            await asyncio.wait({going}, timeout=0)
        return await going


async def interrupted(*, fail_detach: bool = False) -> Interrupted:
    """Run an episode into its first generation, and a weight update over it."""
    stage, engine = Stage(), SteppedEngine()
    envs = LeasingBuilder(fail_detach=fail_detach)
    stage.engine, stage.envs = engine, envs
    flow = stage.flow()
    sample = new_sample()
    running = asyncio.ensure_future(run(flow, sample))
    await engine.until(1)
    await flow.pause_generations(SyncMode.ABORT)
    with pytest.raises(RolloutGenerationAborted):
        await running
    await flow.resume_generations()
    return Interrupted(flow, engine, envs, stage, sample)


async def test_it_is_taken_back_by_the_next_attempt() -> None:
    """While nobody runs the episode its environment is under a lease, which the sample carries."""
    world = await interrupted()
    (lease,) = world.envs.leased
    assert world.sample.partial_agent_data is not None
    assert world.sample.partial_agent_data.m.lease == lease
    assert world.flow._core.detached == 1
    assert (await world.resume()).rewards == 1.0
    assert world.envs.started == 2  # its own and the judge's
    assert (world.flow._core.detached, world.envs.leased, world.envs.live) == (0, {}, set())
    assert "restarted_clean" not in world.stage.events.kinds()
    await world.flow.close()


async def test_a_lost_one_restarts_clean_and_says_so() -> None:
    """The next attempt begins anew, in an environment of its own."""
    world = await interrupted()
    await world.envs.leased.popitem()[1].stop()
    assert (await world.resume()).rewards == 1.0
    assert "restarted_clean" in world.stage.events.kinds()
    assert (world.flow._core.detached, world.envs.live) == (0, set())
    await world.flow.close()


async def test_one_that_dies_at_its_detach_restarts_clean() -> None:
    """It is removed at once, and nobody waits for it."""
    world = await interrupted(fail_detach=True)
    assert (world.flow._core.detached, world.envs.live) == (0, set())
    assert (await world.resume()).rewards == 1.0
    assert "restarted_clean" in world.stage.events.kinds()
    await world.flow.close()


async def test_one_that_is_given_up_is_removed() -> None:
    """So is one whose flow closes."""
    world = await interrupted()
    await world.flow.give_up(world.sample.partial_agent_data)
    assert (world.flow._core.detached, world.envs.live) == (0, set())
    await world.flow.close()
    other = await interrupted()
    assert other.envs.live
    await other.flow.close()
    assert not other.envs.live


async def test_another_flow_takes_it_over() -> None:
    """The sample's lease is enough, as when it goes to another worker."""
    world = await interrupted()
    heir = world.stage.flow()
    world.flow._envs.leases.clear()
    world = Interrupted(heir, world.engine, world.envs, world.stage, world.sample)
    assert (await world.resume()).rewards == 1.0
    assert (heir._core.detached, world.envs.started, world.envs.live) == (0, 2, set())
    await heir.close()
