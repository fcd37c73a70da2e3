"""The volume that brings the helper into containers, read-only.

A volume works where copying into each container does not (a read-only root) and where a bind mount
does not (an engine on another machine), and it is filled once per engine and build of the helper.
"""

from __future__ import annotations

import io
import tarfile
from typing import TYPE_CHECKING, Any

from agentflow.swe.environment.docker import helper
from agentflow.swe.environment.docker.owner import EXPIRES_LABEL, OWNER_LABEL, myself

if TYPE_CHECKING:
    from agentflow.swe.environment.docker.engine import Engine

NOT_FOUND = 404
VOLUME_PREFIX = "agentflow-helper-"
"""Names are ours by this, not by a label: an engine makes a volume that a container names."""
FILL_TTL_S = 600
"""The container that a volume is filled through is removed at once, or by a sweep after this."""


async def ensure_helper_volume(
    engine: Engine, *, image: str, architecture: str, now: float
) -> str | None:
    """Return the name of a volume that holds the helper, None where we ship none for the machine.

    `image` is any image of the engine: a volume is filled through a container that never starts.
    Two processes that fill it at once write the same bytes.
    """
    data = helper.binary(architecture)
    if data is None:
        return None
    volume = f"{VOLUME_PREFIX}{helper.digest(data)}"
    await engine.call(lambda client: client.create_volume(volume))
    container = await engine.create(
        {
            "image": image,
            "command": [helper.PATH],
            "labels": {OWNER_LABEL: myself(), EXPIRES_LABEL: str(int(now + FILL_TTL_S))},
        },
        {"binds": [f"{volume}:{helper.MOUNT}"], "network_mode": "none"},
    )
    try:
        await engine.call(lambda client: _fill(client, container, data))
    finally:
        await engine.remove(container)
    return volume


def _fill(client: Any, container: str, data: bytes) -> None:
    if _read(client, container) != data:
        client.put_archive(container, helper.MOUNT, _archive(data))


def _read(client: Any, container: str) -> bytes | None:
    try:
        chunks, _ = client.get_archive(container, helper.PATH)
    except Exception as error:  # the SDK's, which this module does not import
        if getattr(error, "status_code", None) == NOT_FOUND:
            return None
        raise
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        member = archive.extractfile("helper")
        return member.read() if member is not None else None


def _archive(data: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("helper")
        member.size, member.mode = len(data), 0o755
        archive.addfile(member, io.BytesIO(data))
    return out.getvalue()
