"""What tests with a real engine share: the command line, and the engine's own life."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from agentflow.swe.environment.docker.owner import OWNER_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[2]


def docker(*arguments: str, check: bool = True) -> str:
    """Run the docker command line and return what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=check)
    return done.stdout.strip()


def our_containers() -> list[str]:
    """Names of all containers that carry our label, stopped ones included."""
    found = docker("ps", "-a", "--filter", f"label={OWNER_LABEL}", "--format", "{{.Names}}")
    return found.split()


ENGINE = ROOT / "scripts" / "docker-engine.sh"


def engine_pid() -> int:
    """Return the pid of the engine that the script started; skip where it is another's."""
    cache = os.environ.get("AGENTFLOW_CACHE") or Path.home() / ".cache" / "agentflow"
    file = Path(cache) / "docker" / "dockerd.pid"
    if not file.exists():
        pytest.skip("this machine's engine is not ours to kill")
    return int(file.read_text())


def kill_engine() -> None:
    """Kill the engine as a crash would, and wait until it is gone."""
    pid = engine_pid()
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}/fd/0").exists():
        time.sleep(0.01)


def start_engine() -> None:
    """Start it again, with its containers."""
    subprocess.run([ENGINE, "start"], check=True, capture_output=True)


async def until(there: Callable[[], bool]) -> None:
    """Wait for something that happens by itself and tells nobody."""
    async with asyncio.timeout(30):
        while not there():  # noqa: ASYNC110  # the engine has no event to wait for
            await asyncio.sleep(0.01)
