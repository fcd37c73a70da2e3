"""TokenModel: the library's Model interface for one episode, exact to the token.

Owns how a generated turn becomes a message and how output becomes an observation; the tokens are
`TurnModel`'s. A malformed turn raises FormatError(assistant message, user message), which the
library appends both: the history stays linear, so that every prompt extends the previous one.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, field_validator

from agentflow.errors import ContextFull
from agentflow.swe.agent import prompts
from agentflow.swe.agent.library import (
    FormatError,
    LimitsExceeded,
    expand_multimodal_content,
    recursive_merge,
)
from agentflow.swe.agent.outcome import CONTEXT_FULL, exit_message
from agentflow.swe.agent.templates import render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.engine.turns import Turn, TurnModel
    from agentflow.types import Message


class ContextExceeded(LimitsExceeded):
    """Raised when the conversation fills the model's context."""


class TokenModelConfig(BaseModel):
    """How turns are read and observations are worded; the names are the library's."""

    model_config = ConfigDict(extra="forbid")

    observation_template: str = prompts.OBSERVATION
    """Renders `output` (output, returncode, exception_info) into the next user message."""
    format_error_template: str = prompts.FORMAT_ERROR
    """Renders `actions`, `error` and `finish_reason` into the answer to a malformed turn."""
    action_regex: str = prompts.ACTION_REGEX
    """Its one group, or else the whole match, is the command; a turn has exactly one match."""
    multimodal_regex: str = ""
    """Finds images in observations, as in the library; empty: plain text."""
    cost_per_call: float = 0.0
    """Charged to the agent's cost for every turn; one's own engine costs nothing."""

    @field_validator("action_regex")
    @classmethod
    def _one_group(cls, value: str) -> str:
        try:
            groups = re.compile(value, re.DOTALL).groups
        except re.error as error:
            raise ValueError(f"is not a regular expression: {error}") from error
        if groups > 1:
            raise ValueError(f"must have one group, the command; it has {groups}")
        return value


class TokenModel:
    """The assistant of one episode as the library's agents see it. Picklable."""

    def __init__(
        self,
        turns: TurnModel,
        *,
        config: TokenModelConfig | None = None,
        loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        """`loop` is where the engine lives, for `query` from another thread."""
        self.turns = turns
        self.config = config if config is not None else TokenModelConfig()
        self._loop = loop

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loop": None}

    # --- generating ---------------------------------------------------------------------------

    async def aquery(self, messages: Sequence[Message]) -> Message:
        """Generate one turn and return it as a message with its actions.

        Raises FormatError for a malformed turn, ContextExceeded where no token has room, and what
        the engine raises; after GenerationAborted the same call goes on with the turn.
        """
        try:
            turn = await self.turns.generate(messages)
        except ContextFull as error:
            raise ContextExceeded(exit_message(CONTEXT_FULL)) from error
        return self._message(turn)

    def query(self, messages: Sequence[Message]) -> Message:
        """`aquery` for the library's own, synchronous agents; blocks the calling thread.

        Runs on the loop given at construction, from another thread; without one on a new loop,
        which suits engines that keep no connections. Raises RuntimeError on a running loop.
        """
        if _on_a_loop():
            raise RuntimeError("query blocks, and an event loop runs here: await aquery instead")
        if self._loop is None:
            return asyncio.run(self.aquery(messages))
        return asyncio.run_coroutine_threadsafe(self.aquery(messages), self._loop).result()

    def _message(self, turn: Turn) -> Message:
        actions = self.find_actions(turn.text)
        extra = {
            "actions": [{"command": action} for action in actions],
            "cost": self.config.cost_per_call,
            "finish_reason": turn.finish.value,
            "tokens": turn.tokens,
        }
        message = {"role": "assistant", "content": turn.text, "extra": extra}
        if len(actions) == 1:
            return message
        extra["actions"] = []
        error = self._format_error(turn.text, actions, finish_reason=turn.finish.value)
        raise FormatError(message, error)

    # --- reading and wording ------------------------------------------------------------------

    def find_actions(self, text: str) -> list[str]:
        """Return the commands in a turn's text, by the library's rule."""
        return [found.strip() for found in re.findall(self.config.action_regex, text, re.DOTALL)]

    def _format_error(self, text: str, actions: list[str], *, finish_reason: str) -> Message:
        variables = {
            "actions": actions,
            "error": f"Expected exactly 1 action, found {len(actions)}.",
            "finish_reason": finish_reason,
        }
        return {
            "role": "user",
            "content": render(self.config.format_error_template, variables),
            "extra": {
                "interrupt_type": "FormatError",
                "n_actions": len(actions),
                "model_response": text,
            },
        }

    def format_message(self, **fields: Any) -> Message:
        """Return a message of these fields, images taken out of its text where configured."""
        message: Message = expand_multimodal_content(fields, pattern=self.config.multimodal_regex)
        return message

    def format_observation_messages(
        self,
        message: Message,  # noqa: ARG002  # the library's
        outputs: Sequence[Mapping[str, Any]],
        template_vars: Mapping[str, Any] | None = None,
    ) -> list[Message]:
        """Return one user message for each command's output."""
        return [self._observation(output, template_vars or {}) for output in outputs]

    def _observation(self, output: Mapping[str, Any], variables: Mapping[str, Any]) -> Message:
        content = render(self.config.observation_template, {**variables, "output": output})
        extra = {
            "raw_output": output.get("output", ""),
            "returncode": output.get("returncode"),
            "exception_info": output.get("exception_info"),
            **output.get("extra", {}),
        }
        return self.format_message(role="user", content=content, extra=extra)

    # --- what the library asks of a model -----------------------------------------------------

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        """Return the configuration, which templates may use."""
        merged: dict[str, Any] = recursive_merge(self.config.model_dump(), kwargs)
        return merged

    def serialize(self) -> dict[str, Any]:
        """Return its part of a trajectory file."""
        kind = type(self)
        told = {
            "model": self.config.model_dump(mode="json"),
            "model_type": f"{kind.__module__}.{kind.__qualname__}",
        }
        return {"info": {"config": told}}


def _on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
