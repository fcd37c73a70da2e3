"""Images that come from a registry: a real one, on this machine, with an image of ours in it."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker
from real_parts import missing

from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.swe.environment.docker.errors import ImageMissing
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Serve one at an address of this machine, which engines trust without TLS."""
    program = shutil.which("docker-registry")
    if program is None:
        missing("no docker-registry on PATH: scripts/container-extras.sh installs it")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/images}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    with (
        (tmp_path / "log").open("w") as log,
        subprocess.Popen([program, "serve", config], stdout=log, stderr=log) as process,
    ):
        try:
            ping = ["curl", "--silent", "--fail", "--retry", "100", "--retry-connrefused"]
            subprocess.run([*ping, f"http://{address}/v2/"], check=True, capture_output=True)
            yield address
        finally:
            process.terminate()


@pytest.fixture
def pushed(registry: str) -> Iterator[str]:
    """Name an image that the registry has and the engine has not."""
    name = f"{registry}/swe:1"
    docker("tag", "agentflow-swe:latest", name)
    docker("push", name)
    docker("rmi", name)
    yield name
    docker("rmi", name, check=False)


def pulls(name: str) -> int:
    """How often the engine has pulled it."""
    now = f"{time.time():.9f}"  # a duration ago would be cut to whole seconds
    told = docker("events", "--since", "1h", "--until", now, "--filter", "event=pull")
    return told.count(name)


async def test_a_missing_image_is_pulled_once(pushed: str) -> None:
    """Several starts at once share one pull; the sample's digest is what was pulled."""
    builder = DockerEnvBuilder(SMALL)
    envs = await asyncio.gather(*(builder.start(ContainerSpec(image=pushed)) for _ in range(3)))
    for env in envs:
        assert (await env.execute("echo pulled")).output == b"pulled\n"
        assert env.template_vars()["image"].startswith("sha256:")
    assert pulls(pushed) == 1
    await builder.close()


async def test_pulls_can_be_off(pushed: str) -> None:
    """Then the image is missing, and the error says what to do."""
    builder = DockerEnvBuilder({**SMALL, "pull": "never"})
    with pytest.raises(ImageMissing, match="pull: missing"):
        await builder.start(ContainerSpec(image=pushed))
    await builder.close()


async def test_the_registrys_reason_is_told(registry: str) -> None:
    """A name that it does not have."""
    builder = DockerEnvBuilder(SMALL)
    with pytest.raises(ImageMissing, match=r"not found|manifest unknown"):
        await builder.start(ContainerSpec(image=f"{registry}/none:1"))
    await builder.close()
