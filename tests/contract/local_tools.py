"""What is left of local environments: processes and directories, as this machine sees them."""

from __future__ import annotations

import os
from pathlib import Path


def processes_in(directory: Path) -> list[str]:
    """Command lines of the processes of this machine whose directory lies in `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if (entry / "cwd").readlink().is_relative_to(directory):
                    found.append((entry / "cmdline").read_text(errors="replace"))
            except OSError:
                continue
    return found


def telling(what: str, directory: Path) -> list[str]:
    """Processes whose /proc file `what`, such as `environ`, tells of `directory`."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and entry.name != str(os.getpid()):
            try:
                if os.fsencode(directory) in (entry / what).read_bytes():
                    found.append(entry.name)
            except OSError:
                continue
    return found


def run_directories(scratch: Path) -> list[Path]:
    """Run directories that exist."""
    return sorted(scratch.glob("agentflow-local-*"))
