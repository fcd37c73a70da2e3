"""`make test` starts an engine where none runs, and stops that one alone; any other is spared."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from docker_tools import ROOT, docker
from mortal_engine import SCRIPT, MortalEngine

from agentflow.swe.environment.docker import helper
from agentflow.swe.environment.docker.owner import OWNER_LABEL

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(os.geteuid() != 0, reason="starting an engine needs root"),
]

WITH_DOCKER = SCRIPT.with_name("with-docker.sh")


class Stranger:
    """An engine that somebody else started, with an image and a container of theirs."""

    def __init__(self, folder: Path) -> None:
        self.socket = folder / "s.sock"
        self.host = f"unix://{self.socket}"
        self._image = self._container = ""

    def move_in(self) -> None:
        """Make the image and run the container."""
        self._image = docker("--host", self.host, "import", str(self._archive()), "somebodys:image")
        serve = ("somebodys:image", "/helper", "serve", "100000")
        self._container = docker("--host", self.host, "run", "-di", "--network", "none", *serve)

    def _archive(self) -> Path:
        data = helper.binary(os.uname().machine)
        assert data is not None
        path = self.socket.with_suffix(".tar")
        with tarfile.open(path, "w") as archive:
            member = tarfile.TarInfo("helper")
            member.size, member.mode = len(data), 0o755
            archive.addfile(member, io.BytesIO(data))
        return path

    def has(self) -> dict[str, list[str]]:
        """Everything that is there."""
        kinds = {
            "running": ("ps", "-q", "--no-trunc"),
            "containers": ("ps", "-aq", "--no-trunc"),
            "images": ("images", "-aq", "--no-trunc"),
            "volumes": ("volume", "ls", "-q"),
        }
        return {kind: docker("--host", self.host, *ask).split() for kind, ask in kinds.items()}

    def assert_untouched(self) -> None:
        """Fail unless it runs with all that was there, and nothing that was not."""
        assert self.has() == {
            "running": [self._container],
            "containers": [self._container],
            "images": [self._image],
            "volumes": [],
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short path: that of a socket may have a hundred characters."""
    return tmp_path_factory.mktemp("engines")


@pytest.fixture(scope="module")
def stranger(folder: Path) -> Iterator[Stranger]:
    """Somebody's engine, started by no script of ours."""
    engine = Stranger(folder)
    places = [f"--data-root={folder}/data", f"--exec-root={folder}/exec"]
    nothing = ["--bridge=none", "--iptables=false", "--ip6tables=false", "--ip-forward=false"]
    command = ["dockerd", *places, f"--pidfile={folder}/pid", f"--host={engine.host}", *nothing]
    with (folder / "log").open("w") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_for(engine.socket)
            engine.move_in()
            yield engine
        finally:
            everything = docker("--host", engine.host, "ps", "-aq", check=False).split()
            docker("--host", engine.host, "rm", "-f", *everything, check=False)
            process.terminate()


def wait_for(socket: Path) -> None:
    """Return when an engine answers there."""
    curl = ["curl", "-sf", "--retry", "60", "--retry-delay", "1", "--retry-all-errors"]
    subprocess.run([*curl, "--unix-socket", socket, "http://engine/_ping"], check=True)


@pytest.fixture
def cache() -> Iterator[Path]:
    """A folder for an engine of ours, with a path that its sockets fit in."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="engine-") as found:  # a short path
        yield Path(found)


@contextmanager
def machine(cache: Path, **variables: str) -> Iterator[dict[str, str]]:
    """Yield the environment of a machine whose only engine is the one that the variables name."""
    named = {"DOCKER_HOST": "", "SYSTEM_DOCKER_SOCKET": f"{cache}/none.sock", **variables}
    environment = {**os.environ, "AGENTFLOW_CACHE": str(cache), **named}
    try:
        yield environment
    finally:
        subprocess.run([SCRIPT, "stop", "--purge"], env=environment, check=True)


def run(environment: dict[str, str], *command: str | Path) -> str:
    """Run a command there; returns what it printed."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("by", ["DOCKER_HOST", "SYSTEM_DOCKER_SOCKET"])
def test_an_engine_that_runs_is_used_and_left_alone(
    cache: Path, stranger: Stranger, by: str
) -> None:
    """None is started beside it; it outlives every command of ours, and so does all in it."""
    where = stranger.host if by == "DOCKER_HOST" else str(stranger.socket)
    with machine(cache, **{by: where}) as environment:
        run(environment, SCRIPT, "start")
        assert run(environment, SCRIPT, "env") == f"export DOCKER_HOST={stranger.host}"
        seen = run(environment, WITH_DOCKER, "docker", "images", "--format", "{{.Repository}}")
        assert seen == "somebodys"
        run(environment, SCRIPT, "stop")
        assert not list(cache.iterdir())
        run(environment, SCRIPT, "stop", "--purge")
        stranger.assert_untouched()


def test_an_engine_behind_tls_is_used(cache: Path, killable: MortalEngine) -> None:
    """One that DOCKER_HOST names over TCP answers with the certificates of its kin."""
    certificates = {"DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": str(killable.certificates.client)}
    with machine(cache, DOCKER_HOST=killable.tls_host, **certificates) as environment:
        run(environment, SCRIPT, "start")
        assert run(environment, SCRIPT, "env") == f"export DOCKER_HOST={killable.tls_host}"
        assert not list(cache.iterdir())


def test_our_engine_ends_with_the_command_and_no_other(cache: Path, stranger: Stranger) -> None:
    """Where none is named one is started for the command, and is gone afterwards."""
    with machine(cache) as environment:
        host = run(environment, WITH_DOCKER, "sh", "-c", "docker version >&2; echo $DOCKER_HOST")
        assert host == f"unix://{cache}/docker/docker.sock"
        assert not Path(host.removeprefix("unix://")).exists()
        assert not (cache / "docker" / "dockerd.pid").exists()
    stranger.assert_untouched()


def test_clean_takes_from_an_engine_only_what_is_ours(stranger: Stranger) -> None:
    """A container of a dead owner goes; somebody's image and container stay."""
    dead = f"{OWNER_LABEL}={boot_and_namespace()}/{2**22 + 1}/1"
    docker("--host", stranger.host, "create", "--label", dead, "somebodys:image", "/helper")
    assert len(stranger.has()["containers"]) == 2
    clean = [sys.executable, "-m", "executors.cli", "clean", "--docker-host", stranger.host]
    done = subprocess.run(clean, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("removed 1 containers")
    stranger.assert_untouched()


def boot_and_namespace() -> str:
    """Say where a process of this machine lives, as an owner's label does."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"
