"""DAggerSWEAgent: the student acts, and with probability β a turn the teacher does in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from executors.task_scheduler.gate import GatedEngine
from executors.task_scheduler.handlers import STUDENT, SWEFlowAgent

if TYPE_CHECKING:
    from agentflow.protocols import AgentFlow, Model, Runner
    from agentflow.types import RolloutSample
    from executors.task_scheduler.agents import RunContext

TEACHER: Final = "teacher"


def dagger_engine(student: Model, teacher: Model) -> GatedEngine:
    """Put both engines behind one door; the student's is that of everything else."""
    return GatedEngine({STUDENT: student, TEACHER: teacher})


class DAggerSWEAgent(SWEFlowAgent):
    """`BaseAgent` over `SWEAgentFlow` with two engines of one vocabulary.

    Who answers a turn is drawn once, from the run's seed, the rollout, the episode and the turn: a
    turn that was aborted and goes on keeps its engine, and a second run draws the same. The source
    of every turn stands in `metadata["_turn_sources"]`.
    """

    def __init__(self, flow: AgentFlow, engine: GatedEngine, *, runner: Runner) -> None:
        """`engine` is `dagger_engine(…)`, and `flow` generates with it."""
        super().__init__(flow, engine)
        self._runner = runner

    def _choose(self, sample: RolloutSample, context: RunContext, turn: int) -> str:
        iteration = context.iteration
        name = f"dagger/{iteration.rollout_id}/{sample.episode}/{turn}"
        return TEACHER if self._runner.random(name).random() < iteration.beta else STUDENT
