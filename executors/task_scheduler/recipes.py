"""Specs as recipes give them: SWE-DAgger, and an installed scaffold.

concurrency of one evaluator:  STACX_DAGGER_ENV_CONCURRENCY   |   --evaluator-concurrency
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from agentflow.errors import ConfigError
from executors.task_scheduler.resource import Resource
from executors.task_scheduler.spec import EvaluatorSpec
from executors.task_scheduler.stopping import StoppingCriteria

if TYPE_CHECKING:
    from collections.abc import Mapping

    from executors.task_scheduler.agents import BaseAgent
    from executors.task_scheduler.args import SchedulerArgs

ENV_CONCURRENCY: Final = "STACX_DAGGER_ENV_CONCURRENCY"
DEFAULT_CONCURRENCY: Final = 4

_CPU, _MEMORY_GB = 96.0, 320.0
"""Budget of one evaluator: a node's cores, and its memory less what the engines keep."""
_SAMPLE_CPU, _SAMPLE_MEMORY_GB = 4.0, 16.0
"""Of one sandbox. No GPU: those belong to the engines."""
_STOPPING = StoppingCriteria(max_turns=100, max_context_len=65536)


def swe_dagger_spec(
    handler: BaseAgent, args: SchedulerArgs, *, environ: Mapping[str, str] | None = None
) -> EvaluatorSpec:
    """Give the SWE-DAgger recipe's spec. Raises ConfigError for a concurrency that is none."""
    text = (os.environ if environ is None else environ).get(ENV_CONCURRENCY)
    text = text or str(DEFAULT_CONCURRENCY)
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"{ENV_CONCURRENCY} is {text!r}; it must be a whole number from 1")
    return _spec(handler, args, concurrency=int(text))


def scaffold_spec(handler: BaseAgent, args: SchedulerArgs) -> EvaluatorSpec:
    """Give the spec of an installed scaffold."""
    return _spec(handler, args, concurrency=args.evaluator_concurrency)


def _spec(handler: BaseAgent, args: SchedulerArgs, *, concurrency: int) -> EvaluatorSpec:
    sample = Resource(gpu=0, concurrency=1, cpu=_SAMPLE_CPU, memory_gb=_SAMPLE_MEMORY_GB)
    return EvaluatorSpec(
        evaluator_id="swe",
        handler=handler,
        resource=Resource(gpu=0, concurrency=concurrency, cpu=_CPU, memory_gb=_MEMORY_GB),
        run_resource=sample,
        eval_resource=sample,
        batch_size=args.evaluator_batch_size,
        default_stopping=_STOPPING,
    )
