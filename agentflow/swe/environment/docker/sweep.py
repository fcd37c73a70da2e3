"""Sweep: remove what dead owners left, and only that.

A container of ours is left alone while its owner lives, while a lease or a journal may still call
for it, and, when its owner ran on another machine, until the time on its label is over.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker.engine import Engine
from agentflow.swe.environment.docker.errors import EngineRefused
from agentflow.swe.environment.docker.leases import LeaseBook
from agentflow.swe.environment.docker.owner import (
    EXPIRES_LABEL,
    OWNER_LABEL,
    SNAPSHOT_LABEL,
    is_alive,
)
from agentflow.swe.environment.docker.volume import VOLUME_PREFIX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from agentflow.protocols import Runner

log = logging.getLogger(__name__)
ENGINE_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """What a sweep removed."""

    containers: tuple[str, ...] = ()
    images: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()


def is_abandoned(
    name: str,
    labels: Mapping[str, str],
    *,
    now: float,
    leased: Callable[[str], bool],
    alive: Callable[[str], bool | None] = is_alive,
) -> bool:
    """Whether nobody can have a use for a container any more."""
    if leased(name):
        return False
    living = alive(labels.get(OWNER_LABEL, ""))
    if living is None:
        expires = labels.get(EXPIRES_LABEL, "")
        return expires.isdecimal() and now > int(expires)
    return not living


async def sweep(
    engine: Engine, *, book: LeaseBook, now: float, keep: Collection[str] = ()
) -> tuple[str, ...]:
    """Remove abandoned containers but those named in `keep`; returns their names."""
    removed = []
    for found in await engine.containers(OWNER_LABEL):
        name = str(found["Names"][0]).lstrip("/") if found.get("Names") else str(found["Id"])
        labels: Mapping[str, str] = found.get("Labels") or {}
        if name in keep or found["Id"] in keep:
            continue
        if is_abandoned(name, labels, now=now, leased=lambda n: book.is_leased(n, now=now)):
            await engine.remove(str(found["Id"]))
            book.drop(name)
            removed.append(name)
    if removed:
        log.info("removed %d containers of dead owners", len(removed))
    return tuple(removed)


async def clean(
    *,
    docker_host: str | None = None,
    keep: Collection[str] = (),
    runner: Runner | None = None,
) -> Swept:
    """Remove what earlier runs left on an engine: containers, snapshots, unused helper volumes.

    `keep` names containers that a journal may still resume. What a living process uses stays.
    Raises EngineSilent when no engine answers.
    """
    own = AsyncioRunner() if runner is None else None
    used: Runner = runner or own or AsyncioRunner()
    engine = Engine(host=docker_host, timeout_s=ENGINE_TIMEOUT_S, runner=used)
    book = LeaseBook()
    try:
        now = used.wall_time()
        containers = await sweep(engine, book=book, now=now, keep=keep)
        images = await _sweep_snapshots(engine, book.snapshots(now=now))
        return Swept(containers=containers, images=images, volumes=await _sweep_volumes(engine))
    finally:
        await engine.close()
        if own is not None:
            own.close()


async def _sweep_snapshots(engine: Engine, keep: Collection[str]) -> tuple[str, ...]:
    found = await engine.call(lambda c: c.images(filters={"label": SNAPSHOT_LABEL}))
    return await _remove_unused(
        engine,
        [str(image["Id"]) for image in found if image["Id"] not in keep],
        lambda client, image: client.remove_image(image),
    )


async def _sweep_volumes(engine: Engine) -> tuple[str, ...]:
    found = await engine.call(lambda c: c.volumes(filters={"name": VOLUME_PREFIX}))
    return await _remove_unused(
        engine,
        [str(volume["Name"]) for volume in found.get("Volumes") or ()],
        lambda client, volume: client.remove_volume(volume),
    )


async def _remove_unused(
    engine: Engine, names: Collection[str], remove: Callable[[Any, str], Any]
) -> tuple[str, ...]:
    """Remove what no container uses; the engine refuses the rest."""
    removed = []
    for name in names:
        try:
            await engine.call(lambda client, name=name: remove(client, name))  # type: ignore[misc]
        except EngineRefused as error:
            log.debug("%s stays: %s", name, error)
        else:
            removed.append(name)
    return tuple(removed)
