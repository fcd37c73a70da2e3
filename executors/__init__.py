"""Who drives many episodes: executors, sources of samples, runs and their directories, the CLI.

    backend    RolloutBackend: what a trainer holds
    naive      NaiveExecutor: whole trajectories, up to a number of them at a time
    source     where samples come from and go back to
    session    Rollout: one run, from its configuration to its summary
    run_dir    what a run leaves on disk
    simulate   whole runs in virtual time
    cli        the `agentflow` command

The top of the imports: nothing in `agentflow` or `priority` knows this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from executors.backend import RolloutBackend

__all__ = ["RolloutBackend"]


def __getattr__(name: str) -> object:
    """Import the backend when it is asked for: a command that needs none stays quick."""
    if name == "RolloutBackend":
        from executors.backend import RolloutBackend  # noqa: PLC0415  # see above

        return RolloutBackend
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
