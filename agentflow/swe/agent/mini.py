"""MiniSWEAgent: the library's DefaultAgent, cut into half-steps that can be awaited and resumed.

Owns the order of an episode: open the conversation, query, run the actions, observe, and what the
library's `run` does around each step. Everything else is inherited, its synchronous `run` included.

Invariants: a step is begun once, however often it is interrupted (`n_calls`, cost and format errors
are those of an undisturbed run); what interrupts without ending (an agentflow error, cancellation)
leaves the agent where it was; between two calls it pickles, without its environment.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from agentflow.errors import AgentflowError, ConfigError
from agentflow.provider_config import parse_section
from agentflow.swe.agent.awaited import AwaitedAgent
from agentflow.swe.agent.config import MiniSWEAgentConfig
from agentflow.swe.agent.environments import DetachedEnv
from agentflow.swe.agent.library import AgentConfig, FormatError, InterruptAgentFlow
from agentflow.swe.agent.outcome import REPEATED_FORMAT_ERROR, exit_message, read_outcome
from agentflow.swe.agent.token_model import TokenModel
from agentflow.types import StepStatus, SWERolloutResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentflow.protocols import ContainerEnv
    from agentflow.swe.sample import SWESample
    from agentflow.types import Ending, Message


class MiniSWEAgent(AwaitedAgent):
    """The library's agent with an asynchronous, re-entrant run."""

    def __init__(
        self, model: Any, env: Any, *, config_class: type = AgentConfig, **kwargs: Any
    ) -> None:
        """Take what the library's agent takes; see `AwaitedAgent`."""
        super().__init__(model, env, config_class=config_class, **kwargs)
        self.sample: SWESample | None = None
        self.result: SWERolloutResult | None = None
        """How the agent left; None while it has not."""
        self.ending: Ending | None = None
        """Why it left; None as well where a bug ended it."""
        self.examples: list[Message] = []
        """Stand between the system message and the first user message."""
        self._due: Message | None = None
        self._outputs: list[dict[str, Any]] = []

    def adopt(self, sample: SWESample) -> None:
        """Work on `sample`: its messages, its issue as the task, its result."""
        self.sample = sample
        self.messages = sample.messages
        self.extra_template_vars["task"] = sample.m.data.problem_statement

    # --- an episode ---------------------------------------------------------------------------

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Run until the agent leaves, or go on with what was interrupted.

        Raises GenerationAborted and other agentflow errors; calling again goes on. Any other
        exception ends the episode with an exit message, as in the library.
        """
        self.attach(env)
        while self.result is None:
            if self._due is None:
                await self._generate()
            else:
                await self._act(env, self.parse_action(self._due) or "")
        return self.result

    def open_conversation(self) -> None:
        """Add all that stands before the first answer, unless it stands there already."""
        if self.messages:
            return
        system = self.render_template(self.config.system_template)
        user = self.render_template(self.config.instance_template)
        self.add_messages(
            self.model.format_message(role="system", content=system),
            *self.examples,
            self.model.format_message(role="user", content=user),
        )

    async def _generate(self) -> tuple[StepStatus, str | None]:
        """First half of a step: a query, and all of the step where it asks for no action."""
        if self.result is not None:
            return StepStatus.TERMINATED, None
        if self._due is not None:
            raise RuntimeError("a command is due: env_step comes next, not generation_step")
        with self._stopwatch.running():
            self.open_conversation()
            with self._library_rules("generation"):
                message = await self.aquery()
                action = self.parse_action(message)
                if action is not None:
                    self._due = message
                    return StepStatus.NEEDS_ENV_STEP, action
                self._observe(message)
        return self._status(), None

    async def _act(self, env: Any, pending_action: str) -> tuple[StepStatus, None]:
        """Second half of a step: run the actions of the last message and observe."""
        message = self._due
        if message is None:
            raise RuntimeError("no command is due: generation_step comes next, not env_step")
        self.attach(env)
        with self._stopwatch.running(), self._library_rules("command"):
            for action in self._actions(message, pending_action)[len(self._outputs) :]:
                self._outputs.append(await self.execute_action(action))
            self._observe(message)
        return self._status(), None

    def _actions(self, message: Message, pending_action: str) -> list[dict[str, Any]]:
        actions: list[dict[str, Any]] = message["extra"]["actions"]
        if pending_action == self.parse_action(message):
            return actions
        if len(actions) == 1:
            return [{**actions[0], "command": pending_action}]
        raise ValueError(
            f"pending action {pending_action!r} is not what the last message asks for:"
            f" {self.parse_action(message)!r}"
        )

    def _observe(self, message: Message) -> None:
        """Append what the commands said; a step that gets here was clean."""
        outputs, variables = self._outputs, self.get_template_vars()
        self.add_messages(*self.model.format_observation_messages(message, outputs, variables))
        self.n_consecutive_format_errors = 0
        self._due = None

    def _status(self) -> StepStatus:
        return StepStatus.NEEDS_GENERATION if self.result is None else StepStatus.TERMINATED

    # --- what the library's `run` does around a step ------------------------------------------

    @contextmanager
    def _library_rules(self, phase: str) -> Iterator[None]:
        """Turn what interrupts a step into messages; record the end where one has the role exit.

        This is the library's own boundary: an unexpected exception becomes an exit message and is
        raised again.
        """
        interrupt: InterruptAgentFlow | None = None
        try:
            yield
        except FormatError as error:
            interrupt = error
            self._take_format_error(error)
        except InterruptAgentFlow as error:
            interrupt = error
            self.add_messages(*error.messages)
        except AgentflowError:
            raise
        except Exception as error:
            self.result = SWERolloutResult.FAILURE
            self.handle_uncaught_exception(error)
            self._end_step()
            raise
        if interrupt is None and self._due is not None:
            return  # half a step: its command is still to be run
        self._end_step()
        self._record_outcome(phase, interrupt)

    def _take_format_error(self, error: FormatError) -> None:
        self.cost += error.messages[0].get("extra", {}).get("cost", 0.0)
        self.n_consecutive_format_errors += 1
        self.add_messages(*error.messages)
        limit = self.config.max_consecutive_format_errors
        if 0 < limit <= self.n_consecutive_format_errors:
            self.add_messages(exit_message(REPEATED_FORMAT_ERROR))

    def _end_step(self) -> None:
        self._due = None
        self._outputs = []
        self.save(self.config.output_path)

    def _record_outcome(self, phase: str, interrupt: InterruptAgentFlow | None) -> None:
        if self.messages[-1].get("role") != "exit":
            return
        outcome = read_outcome(self, phase=phase, interrupt=interrupt)
        self.result, self.ending = outcome.result, outcome.ending
        if self.sample is not None:
            rollout = self.sample.m.rollout
            rollout.result, rollout.ending = outcome.result, outcome.ending
            rollout.submission = outcome.submission


class MiniSWEAgentBuilder:
    """Builds the agents of a flow from its `agent` section."""

    config_class: ClassVar[type[MiniSWEAgentConfig]] = MiniSWEAgentConfig
    agent_class: ClassVar[type[MiniSWEAgent]] = MiniSWEAgent

    def __init__(self, subconf: Mapping[str, Any]) -> None:
        """Raises ConfigError for a key or value that is wrong."""
        self.config = parse_section(self.config_class, subconf, kind="agent")

    def build(self, sample: SWESample) -> MiniSWEAgent:
        """Make the agent of one episode. Raises ConfigError where `sample.model` is not set."""
        if sample.model is None:
            raise ConfigError(f"{sample.episode}: sample.model must be set before its agent")
        agent = self.agent_class(
            TokenModel(sample.model, config=self.config.token_model_config()),
            DetachedEnv({"cwd": sample.m.data.container_args.workdir}),
            **self.config.agent_fields(sample),
        )
        agent.examples = [m for example in self.config.examples for m in example.messages()]
        agent.adopt(sample)
        return agent
