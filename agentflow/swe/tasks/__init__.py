"""Tasks: rows in SWE-bench's format, and what they point at.

load_tasks(spec) ──rows──▶ RolloutSample.task ──▶ materialise(row) ──Materials──▶ runtime
"""

from agentflow.swe.tasks.loader import load_tasks
from agentflow.swe.tasks.schema import SWETask, parse_task
from agentflow.swe.tasks.sources import Materials, materialise, oracle_patch, with_oracles

__all__ = [
    "Materials",
    "SWETask",
    "load_tasks",
    "materialise",
    "oracle_patch",
    "parse_task",
    "with_oracles",
]
