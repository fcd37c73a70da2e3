"""The environments that a flow holds, when it closes."""

from __future__ import annotations

import pytest
from plugins import Env, EnvBuilder

from agentflow.errors import EnvDied
from agentflow.observe.events import NullEvents
from agentflow.runner import AsyncioRunner
from agentflow.swe.held_envs import HeldEnvs
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.types import ContainerSpec, EpisodeId


class Sticky(Env):
    """Cannot be stopped."""

    async def stop(self) -> None:
        """Fail."""
        raise EnvDied(f"{self.name} does not stop")


class Builder(EnvBuilder):
    """Finds environments by lease, sticky ones too; counts its own closes."""

    closed = 0

    async def attach(self, lease: str) -> Env:
        """Make one up."""
        self.live.add(lease)
        return (Sticky if lease == "sticky" else Env)(self, lease)

    def lease(self, env: Env) -> str:
        """Its name."""
        return env.name

    async def hold(self, lease: str, *, journal: str) -> None:
        """There is no journal."""
        raise AssertionError(lease, journal)

    async def release(self, lease: str) -> None:
        """Forget it."""
        self.live.discard(lease)

    async def close(self) -> None:
        """Count."""
        self.closed += 1


async def test_one_that_does_not_stop_keeps_no_other_one() -> None:
    """All the others and the builder are closed, and the failure is told."""
    builder = Builder()
    envs = HeldEnvs(builder, runner=AsyncioRunner(), events=NullEvents(), keeper=None)
    for lease in ("a", "sticky", "b"):
        data = SWEData(task={}, container_args=ContainerSpec())
        sample = SWESample(episode=EpisodeId(uid=lease), m=SWEMeta(data=data))
        assert await envs.inherit(sample, lease)
    with pytest.raises(EnvDied, match="sticky does not stop"):
        await envs.close()
    assert (builder.live, builder.closed) == ({"sticky"}, 1)
