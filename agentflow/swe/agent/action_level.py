"""ActionLevelMiniSWEAgent: the agent driven one action at a time, by a scheduler."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from agentflow.swe.agent.mini import MiniSWEAgent, MiniSWEAgentBuilder

if TYPE_CHECKING:
    from agentflow.protocols import ContainerEnv
    from agentflow.types import StepStatus


class ActionLevelMiniSWEAgent(MiniSWEAgent):
    """Call `generation_step`, and `env_step` whenever it is what a step asks for."""

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Query the model once; the command when the status is NEEDS_ENV_STEP, else None.

        Raises GenerationAborted and other agentflow errors, after which calling again goes on;
        anything else ends the episode with an exit message, as in the library.
        """
        return await self._generate()

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """Run `pending_action` in `env` and append the observation, or the submission.

        `env` may also be one of the library's own, which blocks the loop. A message that asks for
        several actions gets them all run, in order, in this one step.
        """
        return await self._act(env, pending_action)


class ActionLevelMiniSWEAgentBuilder(MiniSWEAgentBuilder):
    """Builds ActionLevelMiniSWEAgent."""

    agent_class: ClassVar[type[MiniSWEAgent]] = ActionLevelMiniSWEAgent
