"""Starts are a resource: limits, the pool, leases, pauses and snapshots."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker, engine_event, our_containers

from agentflow.errors import EnvDied
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.swe.environment.docker.owner import OWNER_LABEL, myself
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}
JUDGE = ContainerSpec(labels={"agentflow.purpose": "reward"})


@pytest.fixture(autouse=True)
def own_leases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Leases of these tests are nobody else's."""
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))


@pytest.fixture
async def builder() -> AsyncIterator[DockerEnvBuilder]:
    """A builder of small containers."""
    builder = DockerEnvBuilder(SMALL)
    yield builder
    await builder.close()


async def test_live_containers_are_limited() -> None:
    """A start over the limit waits in view until another environment stops."""
    builder = DockerEnvBuilder({**SMALL, "max_live": 1})
    first = await builder.start(ContainerSpec())
    second = asyncio.ensure_future(builder.start(ContainerSpec()))
    third = await builder.start(JUDGE)  # needs far longer than the second to get in line
    assert builder.gauges()["live"]["waiting"] == 1
    await third.stop()
    await first.stop()
    await (await second).stop()
    assert builder.gauges()["live"]["in_use"] == 0
    await builder.close()


async def test_a_judge_starts_when_every_place_is_taken() -> None:
    """Rewards have places of their own, or finished episodes would wait for unfinished ones."""
    builder = DockerEnvBuilder({**SMALL, "max_live": 1})
    await builder.start(ContainerSpec())
    async with await builder.start(JUDGE) as env:
        assert (await env.execute("true")).exit_code == 0
        assert builder.gauges()["rewards"]["in_use"] == 1
    await builder.close()


async def test_the_pool_hands_out_fresh_containers() -> None:
    """The second start finds one ready; nothing of the first is in it."""
    builder = DockerEnvBuilder({**SMALL, "pool_size": 1})
    async with await builder.start(ContainerSpec()) as first:
        await first.execute("echo mine > /testbed/file")
        await builder._nursery.wait()  # for what fills the pool
        spec = ContainerSpec(workdir="/testbed/deep", env={"A": "1"})
        async with await builder.start(spec) as second:
            result = await second.execute("pwd; echo $A; ls /testbed")
            assert result.output == b"/testbed/deep\n1\ndeep\n"
    assert builder.gauges()["pool"]["hits"] == 1
    await builder.close()


async def test_the_pool_discards_what_died() -> None:
    """A ready container that died is replaced, not handed out."""
    builder = DockerEnvBuilder({**SMALL, "pool_size": 1})
    first = await builder.start(ContainerSpec())
    await builder._nursery.wait()  # for what fills the pool
    mine = docker("ps", "--filter", f"label={OWNER_LABEL}={myself()}", "--format", "{{.Names}}")
    (ready,) = set(mine.split()) - {first.name}
    docker("kill", ready)
    second = await builder.start(ContainerSpec())
    assert second.name != ready
    assert (await second.execute("echo fine")).output == b"fine\n"
    await builder.close()


async def test_a_lease_is_taken_back(builder: DockerEnvBuilder) -> None:
    """Detached and attached, an environment goes on with its files."""
    env = await builder.start(ContainerSpec(env={"A": "1"}))
    await env.execute("echo kept > file")
    lease = await builder.detach(env, lease_s=60)
    with pytest.raises(EnvDied, match="detached"):
        await env.execute("true")
    assert builder.gauges()["live"]["in_use"] == 1
    again = await builder.attach(lease)
    assert (await again.execute("cat file; echo $A")).output == b"kept\n1\n"
    assert builder.gauges()["live"]["in_use"] == 1
    await again.stop()
    assert builder.gauges()["live"]["in_use"] == 0


async def test_a_lease_is_taken_over_by_another_builder(builder: DockerEnvBuilder) -> None:
    """The first builder's end leaves it alone, another one goes on with it."""
    env = await builder.start(ContainerSpec())
    await env.execute("echo kept > file")
    lease = await builder.detach(env, lease_s=60)
    await builder.close()
    other = DockerEnvBuilder(SMALL)
    again = await other.attach(lease)
    assert (await again.execute("cat file")).output == b"kept\n"
    await other.close()


async def test_a_lease_that_nobody_takes_ends(builder: DockerEnvBuilder) -> None:
    """The container goes, and its place is free."""
    env = await builder.start(ContainerSpec())
    await builder.detach(env, lease_s=0.05)
    await engine_event(env.name, "destroy")
    await builder._nursery.wait()
    assert builder.gauges()["live"]["in_use"] == 0
    assert env.name not in our_containers()


async def test_a_lost_lease_without_snapshot_is_told(builder: DockerEnvBuilder) -> None:
    """The episode restarts clean and says so."""
    env = await builder.start(ContainerSpec())
    lease = await builder.detach(env, lease_s=60)
    docker("rm", "-f", env.name)
    with pytest.raises(EnvDied, match="leased container"):
        await builder.attach(lease)


async def test_a_snapshot_restores_a_lost_lease(builder: DockerEnvBuilder) -> None:
    """The file system as it was at the detach is back, in a new container."""
    env = await builder.start(ContainerSpec())
    await env.execute("echo kept > file")
    lease = await builder.detach(env, lease_s=60, snapshot=True)
    docker("rm", "-f", env.name)
    again = await builder.attach(lease)
    assert (await again.execute("cat file")).output == b"kept\n"
    await again.stop()
    (lease_file,) = (builder._book._folder).glob("*.json")
    assert (await clean()).images == ()
    lease_file.unlink()
    assert (await clean()).images == (lease.snapshot,)


async def test_a_waiting_environment_is_paused() -> None:
    """It is frozen after a while and thaws for the next command, and for its removal."""
    builder = DockerEnvBuilder({**SMALL, "pause_after_s": 0.1})
    env = await builder.start(ContainerSpec())
    for times in (1, 2):
        await engine_event(env.name, "pause", count=times)
        assert (await env.execute("echo thawed")).output == b"thawed\n"
    await engine_event(env.name, "pause", count=3)
    await env.stop()
    assert env.name not in our_containers()
    await builder.close()


async def test_a_pause_from_outside_is_undone(builder: DockerEnvBuilder) -> None:
    """Somebody else's `docker pause` costs time, not the episode."""
    env = await builder.start(ContainerSpec())
    docker("pause", env.name)
    result = await env.execute("echo back", timeout_s=0.5)
    assert result.output in {b"back\n", b""}
    assert (await env.execute("echo back")).output == b"back\n"
    await env.stop()


async def test_gauges_name_every_stage(builder: DockerEnvBuilder) -> None:
    """Slots, queue and waiting time of each stage are in view."""
    async with await builder.start(ContainerSpec()) as env:
        await env.execute("true")
        gauges = builder.gauges()
    assert set(gauges) == {"starting", "live", "rewards", "commands", "pool"}
    assert gauges["live"]["in_use"] == 1
    assert gauges["commands"]["acquired"] >= 1
    assert {"limit", "in_use", "waiting", "waited_s", "longest_wait_s"} <= set(gauges["starting"])
