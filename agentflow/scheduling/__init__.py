"""The pure action scheduler: events in, actions to begin out; no asyncio, no clock, no I/O.

stages     where an item can be, which event moves it where: one table
items      WorkItem, one episode's place and history in the scheduler
scheduler  ActionScheduler: places, limits, next, victim, reclassify
"""

from agentflow.scheduling.items import WorkItem
from agentflow.scheduling.scheduler import ActionScheduler, Limits
from agentflow.scheduling.stages import LIVE, OUT, AbortReason, Event, Stage

__all__ = ["LIVE", "OUT", "AbortReason", "ActionScheduler", "Event", "Limits", "Stage", "WorkItem"]
