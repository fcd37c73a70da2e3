"""DAggerSWEAgent: the student acts, and with probability β a turn the teacher does in its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from executors.task_scheduler.gate import GatedEngine
from executors.task_scheduler.handlers import STUDENT, SWEFlowAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.engine.turns import EngineAccess
    from agentflow.protocols import AgentFlow, Model, Runner
    from agentflow.types import RolloutSample
    from executors.task_scheduler.agents import RunContext

TEACHER: Final = "teacher"


class DAggerSWEAgent(SWEFlowAgent):
    """`BaseAgent` over `SWEAgentFlow` with two engines of one vocabulary.

    Who answers a turn is drawn once, from the run's seed, the rollout, the episode and the turn: a
    turn that was aborted and goes on keeps its engine, and a second run draws the same. The source
    of every turn stands in `metadata["_turn_sources"]`.
    """

    def __init__(
        self,
        student: EngineAccess,
        teacher: Model,
        make_flow: Callable[[EngineAccess], AgentFlow],
        *,
        runner: Runner,
    ) -> None:
        """`student` renders and counts for both; `teacher` only generates."""
        self.engine = GatedEngine({STUDENT: student.engine, TEACHER: teacher})
        self._runner = runner
        self._build(student, make_flow)

    def _choose(self, sample: RolloutSample, context: RunContext, turn: int) -> str:
        iteration = context.iteration
        name = f"dagger/{iteration.rollout_id}/{sample.episode}/{turn}"
        return TEACHER if self._runner.random(name).random() < iteration.beta else STUDENT
