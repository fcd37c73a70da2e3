"""An engine to be killed: the tests' own, so that nobody else's containers notice."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from certificates import Certificates
from docker_tools import PATIENCE_S, ROOT, docker

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = ROOT / "scripts" / "docker-engine.sh"
IMAGE = "agentflow-swe:latest"


class MortalEngine:
    """A daemon with its own data root and socket below `folder`, and with TLS on a port."""

    def __init__(self, folder: Path, certificates: Certificates) -> None:
        self._folder = folder
        self.host = f"unix://{folder}/docker/docker.sock"
        self.certificates = certificates
        self.tls_host = f"tcp://127.0.0.1:{free_port()}"
        self._arguments = f"--host {self.tls_host} {certificates.arguments}"

    def start(self) -> None:
        """Bring it up, with the containers that it had."""
        self._script("start", "--own")

    def kill(self) -> None:
        """Kill it as a crash would, and return when it is gone."""
        pid = int((self._folder / "docker" / "dockerd.pid").read_text())
        process = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            ended, _, _ = select.select([process], [], [], PATIENCE_S)
        finally:
            os.close(process)
        assert ended, "a killed engine lives on"

    def restart(self) -> None:
        """Kill it and bring it up again."""
        self.kill()
        self.start()

    def remove(self) -> None:
        """End it and forget all that it had; a kill is faster than a stop."""
        ids = self._docker("ps", "-aq").split()
        if ids:
            self._docker("rm", "-f", *ids)
        self.kill()
        self._script("stop", "--purge")

    def load(self, image: str) -> None:
        """Copy an image from the engine that the other tests use."""
        with subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE) as saving:
            load = ["docker", "--host", self.host, "load"]
            subprocess.run(load, stdin=saving.stdout, check=True, stdout=subprocess.DEVNULL)
        assert saving.returncode == 0

    def _docker(self, *arguments: str) -> str:
        return docker("--host", self.host, *arguments)

    def _script(self, *arguments: str) -> None:
        environment = {
            **os.environ,
            "AGENTFLOW_CACHE": str(self._folder),
            "DOCKERD_ARGUMENTS": self._arguments,
        }
        done = subprocess.run(
            [SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def mortal_engine() -> Iterator[MortalEngine]:
    """Yield one that runs and has the image; a second test run on this machine waits its turn."""
    cache = os.environ.get("AGENTFLOW_CACHE") or Path.home() / ".cache" / "agentflow"
    folder = Path(cache) / "mortal-engine"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        engine = MortalEngine(folder, Certificates(folder / "certificates"))
        try:
            engine.start()
            engine.load(IMAGE)
            yield engine
        finally:
            engine.remove()
