"""What tests with a real engine share: the command line, and what it tells of containers."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from agentflow.swe.environment.docker.owner import OWNER_LABEL

ROOT = Path(__file__).parents[2]
PATIENCE_S = 60.0
"""For anything that happens by itself; far more than it takes, so that a hang becomes a failure."""


def docker(*arguments: str, check: bool = True) -> str:
    """Run the docker command line and return what it printed."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, check=check)
    return done.stdout.strip()


def our_containers() -> list[str]:
    """Names of all containers that carry our label, stopped ones included."""
    found = docker("ps", "-a", "--filter", f"label={OWNER_LABEL}", "--format", "{{.Names}}")
    return found.split()


def owner_of(container: str) -> str:
    """Who made a container; "" for one that is gone."""
    return docker(
        "inspect", "-f", f'{{{{index .Config.Labels "{OWNER_LABEL}"}}}}', container, check=False
    )


async def engine_event(container: str, event: str, *, count: int = 1) -> None:
    """Wait until the engine has told of so many events of a container, past ones included."""
    process = await asyncio.create_subprocess_exec(
        *("docker", "events", "--since", "0", "--format", "{{.Status}}"),
        *("--filter", f"container={container}", "--filter", f"event={event}"),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(count):
                assert await process.stdout.readline(), "the engine ended its events"
    finally:
        process.kill()
        await process.wait()
