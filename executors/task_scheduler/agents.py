"""BaseAgent: who owns an episode. An Evaluator knows no more of it than this.

run(sample) ─▶ AgentResult ─ eval ─▶ AgentResult, judged ─▶ copied onto the sample
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from agentflow.types import EpisodeFacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from agentflow.types import Ending, RolloutSample, SWERolloutResult
    from executors.task_scheduler.iteration import IterationState
    from executors.task_scheduler.resource import Placement
    from executors.task_scheduler.stopping import StoppingCriteria


def no_turn(turn: int, source: str) -> None:
    """Hear of a turn, and do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What a handler may know about the place and time of a sample's run."""

    placement: Placement | None
    """Where it runs; None where batches are not gated."""
    stopping: StoppingCriteria
    """To be kept by the handler; a TimeoutError it raises counts as the policy's."""
    iteration: IterationState
    on_turn: Callable[[int, str], None] = no_turn
    """To be told of every turn: its number from 0, and which engine answers it."""


@dataclass(slots=True, kw_only=True)
class AgentResult:
    """What an episode came to. All arrays but `prompt_ids` are equally long."""

    ending: Ending
    prompt_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    response_ids: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    loss_mask: NDArray[np.int8] = field(default_factory=lambda: np.empty(0, np.int8))
    log_probs: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    """Nats; 0.0 where the mask is 0."""
    weight_versions: NDArray[np.int32] = field(default_factory=lambda: np.empty(0, np.int32))
    reward: float = 0.0
    result: SWERolloutResult | None = None
    facts: EpisodeFacts = field(default_factory=EpisodeFacts)
    state: Any = None
    """What `eval` needs of the run; the handler's own."""


class BaseAgent(Protocol):
    """Runs and judges one sample at a time; shared by all samples of its spec."""

    async def run(self, sample: RolloutSample, context: RunContext) -> AgentResult:
        """Roll the episode out.

        Raises RolloutGenerationAborted when it was interrupted and can go on with the next call;
        whatever else it raises aborts this sample and no other.
        """
        ...

    async def eval(
        self, sample: RolloutSample, result: AgentResult, context: RunContext
    ) -> AgentResult:
        """Judge the result of `run`; raises as `run` does."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes. Idempotent."""
        ...
