"""The pure action scheduler: events in, commands out; no asyncio, no clock, no I/O.

stages     where an item can be, which event moves it where: one table
items      WorkItem, one episode's place and history in the scheduler
queues     the waiting lines: a rank queue with removal, and ageing across several
scheduler  ActionScheduler: places, limits, next, victim, reclassify
lines      the queues in order, for whoever looks on
"""

from agentflow.scheduling.items import AbortReason, Command, CommandKind, WorkItem
from agentflow.scheduling.lines import ranking
from agentflow.scheduling.scheduler import ActionScheduler, Limits
from agentflow.scheduling.stages import OUT, Event, IllegalTransition, Stage

__all__ = [
    "OUT",
    "AbortReason",
    "ActionScheduler",
    "Command",
    "CommandKind",
    "Event",
    "IllegalTransition",
    "Limits",
    "Stage",
    "WorkItem",
    "ranking",
]
