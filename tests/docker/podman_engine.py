"""A Podman service of the tests' own: its storage and socket, no network, cgroups by file."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from docker_tools import docker
from real_parts import missing

if TYPE_CHECKING:
    from collections.abc import Iterator

LIMITS = {"nofile": 1024, "nproc": 4096}
"""Podman asks for a million files, which a machine without CAP_SYS_RESOURCE cannot give."""


@contextmanager
def podman_service(image: str) -> Iterator[str]:
    """Yield the address of one that has the image; afterwards nothing of it is left."""
    if shutil.which("podman") is None:
        missing("no podman on PATH: scripts/container-extras.sh installs it")
    folder = Path(tempfile.mkdtemp(prefix="agentflow-podman-"))
    try:
        yield from serve(folder, image)
    finally:
        unmount_below(folder)
        shutil.rmtree(folder)


def serve(folder: Path, image: str) -> Iterator[str]:
    """Run the service while its address is in use."""
    storage = [f"--root={folder}/root", f"--runroot={folder}/run", f"--tmpdir={folder}/tmp"]
    podman = ["podman", *storage, "--cgroup-manager=cgroupfs", "--events-backend=file"]
    host = f"unix://{folder}/podman.sock"
    saved = folder / "image.tar"
    subprocess.run(["docker", "save", "--output", saved, image], check=True)
    subprocess.run([*podman, "load", "--quiet", "--input", saved], check=True, capture_output=True)
    saved.unlink()
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(
            [*podman, "system", "service", "--time=0", host], stdout=log, stderr=log
        ) as service,
    ):
        try:
            wait_for_answer(host)
            yield host
        finally:
            subprocess.run([*podman, "rm", "--all", "--force"], check=True, capture_output=True)
            service.terminate()


def unmount_below(folder: Path) -> None:
    """Podman mounts its storage on itself, and leaves it so."""
    mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}/")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], check=True)


def wait_for_answer(host: str) -> None:
    """Return when something answers there."""
    path = host.removeprefix("unix://")
    curl = ["curl", "--silent", "--fail", "--retry", "100", "--retry-delay", "1"]
    ping = ["--retry-all-errors", "--unix-socket", path, "http://engine/_ping"]
    subprocess.run([*curl, *ping], check=True, capture_output=True)
    docker("--host", host, "version")
