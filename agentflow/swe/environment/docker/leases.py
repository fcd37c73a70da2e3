"""Leases: what lets a container outlive the episode's hold on it, and the process's.

A lease is a small file next to the other caches of this machine. A sweep leaves a container alone
while its lease has not expired, or while the process that attached to it lives.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentflow.swe.environment.docker.owner import is_alive, myself

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvLease:
    """A detached environment: what `DockerEnvBuilder.attach` needs to have it back. Picklable."""

    container: str
    """The container's name."""
    image: str
    """Digest of its image."""
    workdir: str
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    expires_at: float = 0.0
    """Seconds since the epoch; nobody may count on the container after that."""
    snapshot: str | None = None
    """Image of its file system at the time it was detached, if one was asked for."""


class LeaseBook:
    """The lease files of one machine."""

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or default_folder()

    def write(self, lease: EnvLease) -> None:
        """Record that nobody holds the container until the lease expires."""
        self._write(lease.container, {**asdict(lease), "holder": None})

    def hold(self, lease: EnvLease, *, journal: str | None = None) -> None:
        """Record that this process attached to it; `journal` is the file that tells of it."""
        facts = {**asdict(lease), "holder": myself(), "journal": journal}
        self._write(lease.container, facts)

    def _write(self, container: str, facts: Mapping[str, object]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        new = self._folder / f".{container}.{os.getpid()}"
        new.write_text(json.dumps(facts))
        new.replace(self._folder / f"{container}.json")

    def drop(self, container: str) -> None:
        """Forget it."""
        (self._folder / f"{container}.json").unlink(missing_ok=True)

    def is_leased(self, container: str, *, now: float) -> bool:
        """Whether somebody may still come for the container, or has come."""
        facts = self._read(container)
        if facts is None:
            return False
        holder = facts.get("holder")
        if isinstance(holder, str) and is_alive(holder):
            return True
        journal = facts.get("journal")
        if isinstance(journal, str) and not Path(journal).exists():
            return False
        expires_at = facts.get("expires_at")
        return isinstance(expires_at, int | float) and now < expires_at

    def is_held(self, container: str) -> bool:
        """Whether a process has attached to it again."""
        facts = self._read(container)
        return facts is not None and facts.get("holder") is not None

    def snapshots(self, *, now: float) -> set[str]:
        """Return the images that unexpired leases may still be restored from."""
        kept = set()
        for path in self._folder.glob("*.json"):
            facts = self._read(path.stem)
            if facts and facts.get("snapshot") and self.is_leased(path.stem, now=now):
                kept.add(str(facts["snapshot"]))
        return kept

    def _read(self, container: str) -> dict[str, object] | None:
        try:
            facts = json.loads((self._folder / f"{container}.json").read_text())
        except (OSError, ValueError):
            return None
        return facts if isinstance(facts, dict) else None


def default_folder() -> Path:
    """Return `$AGENTFLOW_CACHE/docker/leases`."""
    cache = os.environ.get("AGENTFLOW_CACHE")
    return (Path(cache) if cache else Path.home() / ".cache" / "agentflow") / "docker" / "leases"
