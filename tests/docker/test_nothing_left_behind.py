"""Nothing is left behind: by a cancelled stop, or by a killed process."""

from __future__ import annotations

import asyncio
import pickle
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from docker_tools import ROOT, docker, our_containers

from agentflow.errors import EnvDied
from agentflow.swe.environment.docker import DockerEnvBuilder, clean
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

SMALL = {"pids": 64, "memory_bytes": 64 << 20, "timeout_s": 30}


@pytest.fixture
async def builder() -> AsyncIterator[DockerEnvBuilder]:
    """A builder of small containers."""
    builder = DockerEnvBuilder(SMALL)
    yield builder
    await builder.close()


async def test_close_removes_what_is_not_stopped(builder: DockerEnvBuilder) -> None:
    """Environments that nobody stopped go with their builder."""
    envs = await asyncio.gather(*(builder.start(ContainerSpec()) for _ in range(3)))
    assert {env.name for env in envs} <= set(our_containers())
    await builder.close()
    assert not {env.name for env in envs} & set(our_containers())


async def test_a_stop_cancelled_twice_still_removes(builder: DockerEnvBuilder) -> None:
    """A second cancellation ends the wait, not the removal."""
    env = await builder.start(ContainerSpec())

    async def stop() -> None:
        try:
            await env.stop()
        finally:
            await env.stop()

    stopping = asyncio.ensure_future(stop())
    for _ in range(2):
        await asyncio.wait({stopping}, timeout=0)
        stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    await builder.close()
    assert env.name not in our_containers()


OWNER = """
import asyncio, sys
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.types import ContainerSpec

async def main():
    builder = DockerEnvBuilder({"pids": 64, "memory_bytes": 64 << 20})
    env = await builder.start(ContainerSpec())
    other = await builder.start(ContainerSpec())
    if "lease" in sys.argv:
        await builder.detach(other, lease_s=float(sys.argv[2]))
    print(env.name, other.name, flush=True)
    await env.execute("sleep 1000", timeout_s=900)

asyncio.run(main())
"""


def killed_owner(*arguments: str) -> list[str]:
    """Run a process that starts two environments and is killed; returns their names."""
    return run_and_kill(OWNER, *arguments).split()


def run_and_kill(program: str, *arguments: str) -> str:
    """Run a program until it has said a line, which is returned, and kill it."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as out:
        line = out.readline()
    process.kill()
    process.wait()
    return line


async def test_clean_removes_what_a_killed_process_left(builder: DockerEnvBuilder) -> None:
    """`kill -9` of an owner: its containers go, those of the living stay."""
    living = await builder.start(ContainerSpec())
    names = killed_owner()
    assert len(names) == 2
    assert set(names) <= set(our_containers())
    swept = await clean()
    assert set(swept.containers) == set(names)
    assert living.name in our_containers()
    assert (await living.execute("echo lives")).output == b"lives\n"


async def test_the_next_start_sweeps(builder: DockerEnvBuilder) -> None:
    """No command is needed: the next run's first start removes them too."""
    names = killed_owner()
    await builder.start(ContainerSpec())
    assert not set(names) & set(our_containers())


async def test_a_lease_of_a_dead_owner_is_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What may still be resumed stays until its lease is over, and `keep` keeps the rest."""
    monkeypatch.setenv("AGENTFLOW_CACHE", str(tmp_path))
    plain, leased = killed_owner("lease", "3600")
    assert (await clean(keep=[plain])).containers == ()
    assert (await clean()).containers == (plain,)
    assert leased in our_containers()
    for file in (tmp_path / "docker" / "leases").iterdir():
        file.unlink()
    assert (await clean()).containers == (leased,)


HOLDER = """
import asyncio, pickle, sys
from pathlib import Path
from agentflow.swe.environment.docker import DockerEnvBuilder
from agentflow.types import ContainerSpec

async def main():
    builder = DockerEnvBuilder({"pids": 64, "memory_bytes": 64 << 20})
    for _ in range(2):
        env = await builder.start(ContainerSpec())
        await env.execute("echo mine > file")
        lease = builder.lease(env)
        await builder.hold(lease, journal=sys.argv[1])
        Path(sys.argv[2], env.name).write_bytes(pickle.dumps(lease))
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_what_a_journal_leases_is_spared_until_it_is_taken_over_or_the_journal_goes(
    builder: DockerEnvBuilder, tmp_path: Path
) -> None:
    """`kill -9` of a run with a journal: sweeps leave its containers to whoever resumes it."""
    journal, leases = tmp_path / "journal.sqlite", tmp_path / "leases"
    journal.touch()
    leases.mkdir()
    run_and_kill(HOLDER, str(journal), str(leases))
    first, second = sorted(path.name for path in leases.iterdir())
    assert not {first, second} & set((await clean()).containers)

    env = await builder.attach(pickle.loads((leases / first).read_bytes()))
    assert (await env.execute("cat file")).output == b"mine\n"
    await env.stop()
    assert first not in our_containers()

    assert second in our_containers()
    journal.unlink()
    assert second in (await clean()).containers


async def test_a_start_after_a_clean_brings_its_helper(builder: DockerEnvBuilder) -> None:
    """The helper's volume goes when no container uses it; a living builder makes it anew."""
    env = await builder.start(ContainerSpec())
    await env.stop()
    assert (await clean()).volumes
    async with await builder.start(ContainerSpec()) as env:
        assert (await env.execute("echo fine")).output == b"fine\n"


async def test_foreign_containers_are_left_alone() -> None:
    """`clean` knows its own by their label and touches nothing else."""
    name = docker("run", "-d", "--network", "none", "agentflow-swe:latest", "sleep", "1000")
    try:
        await clean()
        assert docker("inspect", "-f", "{{.State.Running}}", name) == "true"
    finally:
        docker("rm", "-f", name)


async def test_a_container_that_hears_nothing_ends_itself() -> None:
    """The time to live needs no owner and no sweep, and a command in between renews it."""
    builder = DockerEnvBuilder({**SMALL, "ttl_s": 1})
    env = await builder.start(ContainerSpec())
    await env.execute("sleep 1.5")
    assert docker("inspect", "-f", "{{.State.Running}}", env.name) == "true"
    docker("wait", env.name)
    with pytest.raises(EnvDied, match="ttl_s"):
        await env.execute("true")
    await builder.close()
