"""Who waits for what, in order, and what put them there: the scheduler's queues for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentflow.scheduling import Stage

if TYPE_CHECKING:
    from agentflow.scheduling import ActionScheduler, WorkItem

_LINES: Final = {
    "start": (Stage.NEW,),
    "generation": (Stage.PROMISED, Stage.RESUMING, Stage.PENDING),
    "command": (Stage.ENV_QUEUED,),
    "reward": (Stage.REWARD_QUEUED,),
}
"""What each queue waits for, by the names that metrics have for it."""


def ranking(scheduler: ActionScheduler) -> dict[str, list[dict[str, Any]]]:
    """Give every queue, the item that is next first; plain data."""
    return {
        name: [_standing(item) for stage in stages for item in scheduler.places[stage]]
        for name, stages in _LINES.items()
    }


def _standing(item: WorkItem) -> dict[str, Any]:
    return {
        "uid": item.episode.uid,
        "replica_index": item.episode.replica_index,
        "stage": item.stage,
        "high": item.high,
        "rank": item.rank,
        "predicted": item.predicted,
        "preemptions": item.preemptions,
    }
