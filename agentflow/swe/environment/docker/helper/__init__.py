"""The session helper that runs as PID 1 of every container: its binaries, and where they are.

`*.c` is the source, `build.py` makes `bin/helper-<machine>` of it, and the wheel ships those.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

FOLDER = Path(__file__).parent
MOUNT = "/.agentflow"
"""Where a container sees it, read-only."""
PATH = f"{MOUNT}/helper"

MACHINES = {"amd64": "x86_64", "x86_64": "x86_64", "arm64": "aarch64", "aarch64": "aarch64"}
"""An image's `Architecture` to the binary's name; the others get the shell session."""


def binary(architecture: str) -> bytes | None:
    """Return the helper for an image's architecture, None where we ship none."""
    machine = MACHINES.get(architecture)
    return (FOLDER / "bin" / f"helper-{machine}").read_bytes() if machine else None


def digest(data: bytes) -> str:
    """Return 12 hex digits that name this build; part of the volume's name."""
    return hashlib.sha256(data).hexdigest()[:12]
