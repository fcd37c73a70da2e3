"""Who drives many episodes for a trainer.

    backend          RolloutBackend: what a trainer holds; trainers/ has adapters for some
    data/            DataCoordinator: which samples there are, and what became of each
    worker           RolloutWorker: one replica's; takes samples and runs one of two executors
    agentic, naive   AgenticExecutor by actions, NaiveExecutor by whole trajectories
    weight_sync      pauses workers and engines while weights are replaced
    task_scheduler/  the second way in: batches, admitted against a resource pool
    runs/            one run, from its configuration through its directory to its summary
    watching/        what a run looks like from outside
    virtual/         whole runs in virtual time
    cli/             the `agentflow` command

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
