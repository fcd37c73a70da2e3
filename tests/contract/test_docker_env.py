"""Containers keep the contract, with the helper and with the shell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import pytest_asyncio
from environment_contract import EnvironmentContract

from agentflow.swe.environment.docker import DockerEnv, DockerEnvBuilder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.types import ContainerSpec

pytestmark = [pytest.mark.docker, pytest.mark.asyncio(loop_scope="module")]

SETTINGS = {"pids": 128, "memory_bytes": 256 << 20, "timeout_s": 30, "pool_size": 2}
"""The pool makes the next test's container while this one runs."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def helper_builder() -> AsyncIterator[DockerEnvBuilder]:
    """One builder for all tests with the helper."""
    builder = DockerEnvBuilder({**SETTINGS, "session": "helper"})
    yield builder
    await builder.close()


class TestHelperSession(EnvironmentContract):
    """The helper as PID 1."""

    limits_pids = True

    @pytest.fixture
    def env_builder(self, helper_builder: DockerEnvBuilder) -> DockerEnvBuilder:
        """The module's."""
        return helper_builder

    @pytest_asyncio.fixture(loop_scope="module")
    async def env(
        self, env_builder: DockerEnvBuilder, spec: ContainerSpec
    ) -> AsyncIterator[DockerEnv]:
        """A started environment."""
        async with await env_builder.start(spec) as env:
            yield env


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shell_builder() -> AsyncIterator[DockerEnvBuilder]:
    """One builder for all tests with the shell."""
    builder = DockerEnvBuilder({**SETTINGS, "session": "shell"})
    yield builder
    await builder.close()


class TestShellSession(EnvironmentContract):
    """The shell, where we ship no helper; its commands wait for each other."""

    limits_pids = True
    side_by_side = False

    async def test_killing_all_there_is_ends_the_command_alone(self, env: DockerEnv) -> None:
        """Its shell dies too: the end is told, the command runs once, and a new shell the next."""
        result = await env.execute("echo x >> ran; kill -9 -1; sleep 1000", timeout_s=60)
        assert (result.exit_code, result.timed_out) == (137, False)
        assert (await env.execute("cat ran; echo next")).output == b"x\nnext\n"

    @pytest.fixture
    def env_builder(self, shell_builder: DockerEnvBuilder) -> DockerEnvBuilder:
        """The module's."""
        return shell_builder

    @pytest_asyncio.fixture(loop_scope="module")
    async def env(
        self, env_builder: DockerEnvBuilder, spec: ContainerSpec
    ) -> AsyncIterator[DockerEnv]:
        """A started environment."""
        async with await env_builder.start(spec) as env:
            yield env
