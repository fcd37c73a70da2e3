"""Who owns a container: a process, named so that another can tell whether it still lives.

An owner is `boot-id/pid-namespace/pid/start-time`. The same boot and namespace are needed to judge
it: of a process on another machine nothing is known.
"""

from __future__ import annotations

import os
from pathlib import Path

OWNER_LABEL = "agentflow.owner"
RUN_LABEL = "agentflow.run"
"""The id of the run, as run.json has it; without a run directory one of the builder's own."""
BUILDER_LABEL = "agentflow.builder"
"""A process may have several builders; each removes only its own at its end."""
EXPIRES_LABEL = "agentflow.expires"
"""Seconds since the epoch after which a container is nobody's, whoever made it."""
SNAPSHOT_LABEL = "agentflow.snapshot"
PURPOSE_LABEL = "agentflow.purpose"
"""`reward` in a spec's labels: the environment of a judge, which has its own limit."""
REWARD = "reward"


def myself() -> str:
    """Name this process."""
    return f"{_place()}/{os.getpid()}/{_start_time(os.getpid())}"


def is_alive(owner: str) -> bool | None:
    """Whether that process lives; None when it cannot be known from here."""
    place, _, rest = owner.rpartition("/")
    place, _, pid = place.rpartition("/")
    if place != _place() or not pid.isdecimal():
        return None
    return _start_time(int(pid)) == rest


def _place() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{Path('/proc/self/ns/pid').stat().st_ino}"


def _start_time(pid: int) -> str | None:
    """Clock ticks after boot at which it started; None for a process that is gone or a zombie."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *fields = text.rpartition(")")[2].split()
    return None if state in {"Z", "X"} else fields[18]
