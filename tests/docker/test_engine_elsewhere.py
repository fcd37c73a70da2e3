"""Engines that are reached over TCP and TLS: nothing assumes that they are on this machine."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from docker_tools import ROOT, docker
from mortal_engine import free_port

from agentflow.errors import ConfigError
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.swe.environment.docker.errors import ContainerDied, EngineUnavailable
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from mortal_engine import MortalEngine

pytestmark = [pytest.mark.docker]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}
BINARY = b"".join(bytes([i]) * 3 for i in range(256)) * 2000
"""1.5 MB with every byte, so that TLS records and frames fall differently."""


# --- plain TCP --------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def relay(socket: str) -> AsyncIterator[str]:
    """Yield a TCP address at which a unix socket's engine is reached."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    async with asyncio.TaskGroup() as group:

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            there, back = await asyncio.open_unix_connection(socket)
            group.create_task(pipe(reader, back))
            group.create_task(pipe(there, writer))

        async with await asyncio.start_server(serve, "127.0.0.1") as server:
            host, port = server.sockets[0].getsockname()
            yield f"tcp://{host}:{port}"


async def live_through_it(builder: DockerEnvBuilder) -> None:
    """What an episode does with an environment, from its start to its end."""
    env = await builder.start(ContainerSpec())
    await env.write_files({"a/binary": BINARY})
    assert await env.read_file("a/binary", max_bytes=len(BINARY)) == BINARY
    whole = await env.run(("/bin/cat", "a/binary"), head_bytes=len(BINARY))
    assert whole.output == BINARY
    async with asyncio.TaskGroup() as group:  # its tasks begin in this order
        await env.execute("mkfifo go")
        first = group.create_task(env.execute("read < go; echo went", timeout_s=20))
        await group.create_task(env.execute("echo > go"))
    assert first.result().output == b"went\n"
    assert (await env.execute("setsid sleep 1000 & sleep 1000", timeout_s=0.2)).timed_out
    lease = await builder.detach(env, lease_s=60)
    again = await builder.attach(lease)
    assert (await again.execute("wc -c < a/binary")).output == b"%d\n" % len(BINARY)
    docker("kill", again.name)
    with pytest.raises(ContainerDied):
        await again.execute("true")
    await again.stop()


async def test_an_engine_over_tcp(nothing_left: None, mortal: MortalEngine) -> None:
    """An environment's whole life."""
    async with relay(mortal.host.removeprefix("unix://")) as host:
        builder = DockerEnvBuilder({**SMALL, "docker_host": host})
        await live_through_it(builder)
        await builder.close()


# --- TLS --------------------------------------------------------------------------------------


@pytest.fixture
def behind_tls(mortal: MortalEngine, monkeypatch: pytest.MonkeyPatch) -> MortalEngine:
    """Let this test, and every process it starts, talk to the engine over TLS alone."""
    monkeypatch.setenv("DOCKER_HOST", mortal.tls_host)
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(mortal.certificates.client))
    return mortal


@pytest.mark.usefixtures("behind_tls", "nothing_left")
async def test_an_engine_over_tls() -> None:
    """Both sides show certificates; DOCKER_HOST and its kin say where and with which."""
    builder = DockerEnvBuilder(SMALL)
    await live_through_it(builder)
    await builder.close()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize("session", ["helper", "shell"])
async def test_many_environments_over_tls(behind_tls: MortalEngine, session: str) -> None:
    """Each has a connection of its own, and a restart of the engine breaks none for good."""
    builder = DockerEnvBuilder({**SMALL, "session": session})
    envs = await asyncio.gather(*(builder.start(ContainerSpec()) for _ in range(4)))
    for _ in range(2):
        results = await asyncio.gather(*(env.execute("echo $HOSTNAME") for env in envs))
        assert len({result.output for result in results}) == len(envs)
        await asyncio.to_thread(behind_tls.restart)
    await builder.close()


@pytest.mark.usefixtures("behind_tls", "nothing_left")
async def test_a_run_and_a_clean_over_tls(tmp_path: Path) -> None:
    """The command line needs no more than the variables that Docker's own has."""
    command = [sys.executable, "-m", "executors.cli"]
    run = ["run", "--env", "docker", "--tasks", "bundled", "--limit", "1", "--out", f"{tmp_path}/r"]
    for arguments in ([*run, "--engine", "scripted:oracle"], ["clean"]):
        done = await asyncio.to_thread(
            subprocess.run, [*command, *arguments], cwd=ROOT, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
    assert b"helper volumes" in done.stdout
    assert (await clean()).containers == ()


# --- what cannot be reached -------------------------------------------------------------------


async def refusal(**settings: object) -> str:
    """Start on an engine that cannot be used; returns what is said of it."""
    builder = DockerEnvBuilder({**SMALL, **settings})
    with pytest.raises(EngineUnavailable) as caught:
        await builder.start(ContainerSpec())
    await builder.close()
    return str(caught.value)


async def test_an_engine_that_we_do_not_trust(
    behind_tls: MortalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its certificate is of another authority than ours."""
    monkeypatch.setenv("DOCKER_CERT_PATH", str(behind_tls.certificates.write_doubter()))
    said = await refusal()
    assert behind_tls.tls_host in said
    assert "CERTIFICATE_VERIFY_FAILED" in said


async def test_an_engine_that_does_not_know_us(
    behind_tls: MortalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It refuses our certificate."""
    monkeypatch.setenv("DOCKER_CERT_PATH", str(behind_tls.certificates.write_stranger()))
    said = await refusal()
    assert behind_tls.tls_host in said
    assert "ALERT" in said.upper()


async def test_an_engine_of_another_name(behind_tls: MortalEngine) -> None:
    """Its certificate is not for the name by which we call it."""
    host = behind_tls.tls_host.replace("127.0.0.1", "localhost")
    said = await refusal(docker_host=host)
    assert "Hostname mismatch" in said


async def test_an_engine_that_wants_tls(
    behind_tls: MortalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spoken to without, it is told what to set."""
    monkeypatch.delenv("DOCKER_TLS_VERIFY")
    monkeypatch.delenv("DOCKER_CERT_PATH")
    said = await refusal()
    assert behind_tls.tls_host in said
    assert "set DOCKER_TLS_VERIFY=1" in said


async def test_an_engine_without_tls(behind_tls: MortalEngine) -> None:
    """Spoken to with it."""
    async with relay(behind_tls.host.removeprefix("unix://")) as host:
        said = await refusal(docker_host=host)
    assert host in said
    assert "SSL" in said


async def test_nobody_listens() -> None:
    """The address and the system's word for it are told."""
    host = f"tcp://127.0.0.1:{free_port()}"
    said = await refusal(docker_host=host)
    assert host in said
    assert "refused" in said


def test_certificates_that_are_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder and its three files are named before anything starts."""
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=rf"DOCKER_CERT_PATH {tmp_path}: ca\.pem, cert\.pem"):
        DockerEnvBuilder({"docker_host": "tcp://127.0.0.1:2376"})
