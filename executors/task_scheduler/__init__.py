"""The TaskScheduler: whole batches of tasks, admitted against a pool of resources.

    MultiDataSource ─ fetch ─▶ tasks ─ BatchingStrategy ─▶ batches ─ PlacementPool ─▶ Evaluator
                                                                                        │ sample
       trajectory file ◀─ filters ◀─ SchedulerRolloutManager ◀─ on_task_done ◀─ BaseAgent ◀┘

tasks, batching          what is distributed, and in which portions
resource, placement,     demand, supply, admission; node_pool is one node, cluster_layout the flag
spec, agents, evaluator  a handler and its resources; one batch's run; recipes gives specs
gate, handlers, dagger   handlers over agentflow's flows
stopping, args, knobs    criteria, flags, and the table of both
iteration, *_schedule    per-iteration state
scheduler                fetch, distribute, batch, run; admission asserts, ports says what it needs
data_source              prompts, with cursors
filters, group_stats     survivors, and a group's mean
records, stores          samples in files; partial_checkpoint, reuse: which files
eval_*, termination_*    what is reported
rollout_manager          what a trainer calls; ray_actors is the shell around it
"""

from __future__ import annotations

from executors.task_scheduler.agents import AgentResult, BaseAgent, RunContext
from executors.task_scheduler.args import SchedulerArgs, add_arguments, from_namespace, parse_args
from executors.task_scheduler.batching import BatchingStrategy, fifo_batching
from executors.task_scheduler.dagger import DAggerSWEAgent, dagger_engine
from executors.task_scheduler.dagger_schedule import DAggerSchedule
from executors.task_scheduler.data_source import EvalDataset, MultiDataSource, TrainDataset
from executors.task_scheduler.eval_metrics import EvalResult
from executors.task_scheduler.evaluator import Evaluator
from executors.task_scheduler.gate import GatedEngine
from executors.task_scheduler.group_stats import GroupStats, group_stats
from executors.task_scheduler.handlers import ActionLevelFlowAgent, SWEFlowAgent, flow_agent
from executors.task_scheduler.iteration import IterationPublisher, IterationState
from executors.task_scheduler.partial_checkpoint import PartialCheckpoint
from executors.task_scheduler.placement import PlacementDeadlock, PlacementPool
from executors.task_scheduler.ray_actors import rollout_manager_actor
from executors.task_scheduler.recipes import scaffold_spec, swe_dagger_spec
from executors.task_scheduler.resource import NodeResource, Placement, Resource
from executors.task_scheduler.rollout_manager import RolloutStep, SchedulerRolloutManager
from executors.task_scheduler.scheduler import TaskScheduler
from executors.task_scheduler.spec import EvaluatorSpec
from executors.task_scheduler.stopping import StoppingCriteria
from executors.task_scheduler.stores import JsonStore, TorchStore
from executors.task_scheduler.tasks import Batch, Task, TaskConfig
from executors.task_scheduler.termination_summary import classify_abort, classify_termination

__all__ = [
    "ActionLevelFlowAgent",
    "AgentResult",
    "BaseAgent",
    "Batch",
    "BatchingStrategy",
    "DAggerSWEAgent",
    "DAggerSchedule",
    "EvalDataset",
    "EvalResult",
    "Evaluator",
    "EvaluatorSpec",
    "GatedEngine",
    "GroupStats",
    "IterationPublisher",
    "IterationState",
    "JsonStore",
    "MultiDataSource",
    "NodeResource",
    "PartialCheckpoint",
    "Placement",
    "PlacementDeadlock",
    "PlacementPool",
    "Resource",
    "RolloutStep",
    "RunContext",
    "SWEFlowAgent",
    "SchedulerArgs",
    "SchedulerRolloutManager",
    "StoppingCriteria",
    "Task",
    "TaskConfig",
    "TaskScheduler",
    "TorchStore",
    "TrainDataset",
    "add_arguments",
    "classify_abort",
    "classify_termination",
    "dagger_engine",
    "fifo_batching",
    "flow_agent",
    "from_namespace",
    "group_stats",
    "parse_args",
    "rollout_manager_actor",
    "scaffold_spec",
    "swe_dagger_spec",
]
