"""AwaitedAgent: the library's DefaultAgent with awaited methods and the specification's names.

Owns one call of the model and one command, the agent's clock and what of it is pickled; `mini` puts
them into the order of an episode.

Invariant: a call of the model is counted once, however often it is interrupted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.errors import AgentflowError
from agentflow.swe.agent.environments import ContainerView, as_library_env, detached, text_of
from agentflow.swe.agent.library import (
    AgentConfig,
    DefaultAgent,
    LimitsExceeded,
    TimeExceeded,
    check_finished,
)
from agentflow.swe.agent.outcome import exit_message
from agentflow.swe.agent.stopwatch import Stopwatch
from agentflow.swe.agent.templates import render
from agentflow.types import CommandResult

if TYPE_CHECKING:
    from agentflow.types import Message


class AwaitedAgent(DefaultAgent):
    """What an agent does, awaited; the library's synchronous methods work as they did."""

    def __init__(
        self, model: Any, env: Any, *, config_class: type = AgentConfig, **kwargs: Any
    ) -> None:
        """Take what the library's takes; `model` may have `aquery`, `env` may be a ContainerEnv.

        A model with only `query`, and an environment of the library's, block the loop.
        """
        super().__init__(model, as_library_env(env), config_class=config_class, **kwargs)
        self._stopwatch = Stopwatch()
        self._born = self._start_time
        self._calling = False

    def attach(self, env: Any) -> None:
        """Run commands in `env` from now on, and let templates tell of it."""
        if not (isinstance(self.env, ContainerView) and self.env.container is env):
            self.env = as_library_env(env)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "env": detached(self.env)}

    # --- the library's methods, awaited -------------------------------------------------------

    async def aquery(self) -> Message:
        """The library's `query`, awaited: limits, one call of the model, its cost, its message.

        A call that an agentflow error or cancellation interrupted is gone on with, uncounted.
        """
        if not self._calling:
            self._check_limits()
            self.n_calls += 1
            self._calling = True
        try:
            message = await self._ask()
        except Exception as error:
            self._calling = isinstance(error, AgentflowError)
            raise
        self._calling = False
        self.cost += message.get("extra", {}).get("cost", 0.0)
        self.add_messages(message)
        return message

    async def _ask(self) -> Message:
        if hasattr(self.model, "aquery"):
            answer: Message = await self.model.aquery(self.messages)
        else:
            answer = self.model.query(self.messages)
        return answer

    def _check_limits(self) -> None:
        config = self.config
        if 0 < config.step_limit <= self.n_calls or 0 < config.cost_limit <= self.cost:
            raise LimitsExceeded(exit_message("LimitsExceeded"))
        if 0 < config.wall_time_limit_seconds <= int(self.elapsed_s()):
            raise TimeExceeded(exit_message("TimeExceeded"))

    def elapsed_s(self) -> float:
        """Seconds that the half-steps took; moving `_start_time` back ages the agent."""
        return self._stopwatch.elapsed_s() + self._born - self._start_time

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the library's variables; `elapsed_seconds` follows the loop's clock."""
        own = {"elapsed_seconds": int(self.elapsed_s())} if self._stopwatch.started else {}
        variables: dict[str, Any] = super().get_template_vars(
            **{**own, **self.extra_template_vars, **kwargs}
        )
        return variables

    # --- the specification's names ------------------------------------------------------------

    def render_template(self, template: str, **kwargs: Any) -> str:
        """Render with the agent's variables and `kwargs`, compiling a template once."""
        return render(template, self.get_template_vars(**kwargs))

    def _render_template(self, template: str) -> str:
        return self.render_template(template)

    def parse_action(self, message: Message) -> str | None:
        """Return the command that `message` asks for, several one a line; None for none."""
        actions = message.get("extra", {}).get("actions", [])
        return "\n".join(str(a.get("command", "")) for a in actions) if actions else None

    async def execute_action(self, action: dict[str, Any]) -> dict[str, Any]:
        """Run one action in the attached environment. Raises Submitted."""
        if isinstance(self.env, ContainerView):
            return await self.env.aexecute(action)
        output: dict[str, Any] = self.env.execute(action)
        return output

    def has_finished(self, output: dict[str, Any] | CommandResult) -> None:
        """Raise Submitted if a command's output says so."""
        if isinstance(output, CommandResult):
            output = {"output": text_of(output.output), "returncode": output.exit_code}
        check_finished(output)
