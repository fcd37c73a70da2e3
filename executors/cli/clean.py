"""`agentflow clean`: what runs left behind that could not remove it themselves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from agentflow.swe.environment.docker import Swept


def clean(docker_host: str | None) -> None:
    """Remove containers, snapshots and volumes of dead runs, and say which. Raises ConfigError."""
    from agentflow.swe.environment.docker import clean as sweep  # noqa: PLC0415  # the SDK is optional

    typer.echo(_told(asyncio.run(sweep(docker_host=docker_host))))


def _told(swept: Swept) -> str:
    counts = {
        "containers": swept.containers,
        "snapshots": swept.images,
        "helper volumes": swept.volumes,
    }
    removed = [
        f"{len(names)} {what}: {', '.join(names)}" for what, names in counts.items() if names
    ]
    return "removed " + "; ".join(removed) if removed else "nothing was left behind"
