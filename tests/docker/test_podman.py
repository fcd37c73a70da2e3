"""Podman's socket works as well: the contract, and what depends on the engine's own ways."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from docker_tools import ROOT, docker, engine_event, our_containers
from environment_contract import EnvironmentContract
from podman_engine import LIMITS, podman_service

from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.swe.environment.docker.errors import ContainerDied, ImageMissing
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from agentflow.swe.environment.docker import DockerEnv

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {"pids": 128, "memory_bytes": 256 << 20, "timeout_s": 30, "ulimits": LIMITS}


@pytest.fixture(scope="module", autouse=True)
def podman() -> Iterator[None]:
    """Make a Podman the engine that these tests, and every process they start, talk to."""
    with (
        podman_service("agentflow-swe:latest") as host,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("DOCKER_HOST", host)
        yield


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared_builder() -> AsyncIterator[DockerEnvBuilder]:
    """One builder for all tests of the contract."""
    builder = DockerEnvBuilder({**SETTINGS, "session": "helper"})
    yield builder
    await builder.close()


class TestPodman(EnvironmentContract):
    """The helper, beside PID 1."""

    limits_pids = True

    @pytest.fixture
    def env_builder(self, shared_builder: DockerEnvBuilder) -> DockerEnvBuilder:
        """The module's."""
        return shared_builder

    @pytest_asyncio.fixture(loop_scope="module")
    async def env(
        self, env_builder: DockerEnvBuilder, spec: ContainerSpec
    ) -> AsyncIterator[DockerEnv]:
        """A started environment."""
        async with await env_builder.start(spec) as env:
            yield env


@pytest_asyncio.fixture(loop_scope="module")
async def builder(nothing_left: None) -> AsyncIterator[DockerEnvBuilder]:
    """A builder of its own for each test."""
    builder = DockerEnvBuilder({**SETTINGS, "pause_after_s": 0.2})
    yield builder
    await builder.close()


async def test_a_lease_is_taken_over(builder: DockerEnvBuilder) -> None:
    """Podman ends PID 1's stdin with its first connection; a detached container lives on."""
    env = await builder.start(ContainerSpec())
    await env.execute("echo kept > file")
    lease = await builder.detach(env, lease_s=60)
    await builder.close()
    other = DockerEnvBuilder(SETTINGS)
    again = await other.attach(lease)
    assert (await again.execute("cat file")).output == b"kept\n"
    await other.close()


async def test_a_snapshot_is_kept_and_restored(
    nothing_left: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An image's id is one and the same, whichever call tells it."""
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    own = DockerEnvBuilder(SETTINGS)
    env = await own.start(ContainerSpec())
    await env.execute("echo kept > file")
    lease = await own.detach(env, lease_s=60, snapshot=True)
    docker("rm", "-f", env.name)
    assert (await clean()).images == ()
    again = await own.attach(lease)
    assert (await again.execute("cat file")).output == b"kept\n"
    await own.close()
    for file in (tmp_path / "docker" / "leases").iterdir():
        file.unlink()
    assert (await clean()).images == (lease.snapshot,)


async def test_a_waiting_environment_is_paused(builder: DockerEnvBuilder) -> None:
    """And thaws for the next command, and for its removal."""
    env = await builder.start(ContainerSpec())
    await engine_event(env.name, "pause")
    assert (await env.execute("echo thawed")).output == b"thawed\n"
    await engine_event(env.name, "pause", count=2)
    await env.stop()
    assert env.name not in our_containers()


async def test_failures_are_told_apart(builder: DockerEnvBuilder) -> None:
    """Out of memory, a container killed from outside, a missing image."""
    env = await builder.start(ContainerSpec())
    assert (await env.execute("tail /dev/zero")).out_of_memory
    await env.execute("mkfifo up")
    command = asyncio.ensure_future(env.execute("echo > up; sleep 1000", timeout_s=900))
    await env.execute("read < up")
    docker("kill", env.name)
    with pytest.raises(ContainerDied, match="137"):
        await command
    with pytest.raises(ImageMissing, match="base_image"):
        await builder.start(ContainerSpec(image="agentflow-swe:none"))


OWNER = f"""
import asyncio
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.types import ContainerSpec

async def main():
    env = await DockerEnvBuilder({SETTINGS!r}).start(ContainerSpec())
    print(env.name, flush=True)
    await env.execute("sleep 1000", timeout_s=900)

asyncio.run(main())
"""


async def test_clean_removes_what_a_killed_process_left(builder: DockerEnvBuilder) -> None:
    """`kill -9` of an owner: its container goes, that of the living stays."""
    living = await builder.start(ContainerSpec())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    name = (await process.stdout.readline()).decode().strip()
    process.kill()
    await process.wait()
    assert (await clean()).containers == (name,)
    assert (await living.execute("echo lives")).output == b"lives\n"
