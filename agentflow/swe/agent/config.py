"""MiniSWEAgentConfig: the `agent` section of a flow's configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import TemplateSyntaxError
from pydantic import BaseModel, ConfigDict, Field, field_validator

from agentflow.swe.agent import prompts
from agentflow.swe.agent.library import AgentConfig
from agentflow.swe.agent.templates import compiled
from agentflow.swe.agent.token_model import TokenModelConfig

if TYPE_CHECKING:
    from agentflow.swe.sample import SWESample
    from agentflow.types import Message

DEFAULT_STEP_LIMIT = 100
"""The library sets no bound, and a policy that neither submits nor errs would go on until its
context is full. Solved SWE-bench tasks rarely take more than half of this."""


class Example(BaseModel):
    """One worked exchange, shown to the model as a turn of its own that came before."""

    model_config = ConfigDict(extra="forbid")

    user: str
    """What was asked, or what the command before it put out, worded as the agent words it."""
    assistant: str
    """What a good model replies."""

    def messages(self) -> list[Message]:
        """Return it as two messages; `example` in `extra` tells them from an episode's own."""
        return [
            {"role": role, "content": content, "extra": {"example": True}}
            for role, content in (("user", self.user), ("assistant", self.assistant))
        ]


class MiniSWEAgentConfig(TokenModelConfig, AgentConfig):
    """The library's agent configuration, and how turns are read and observations worded."""

    model_config = ConfigDict(extra="forbid")

    name: str = "minisweagent"
    """Which agent this section configures; the registry read it already."""
    system_template: str = prompts.SYSTEM
    """Renders the system message."""
    instance_template: str = prompts.INSTANCE
    """Renders the first user message; `task` is the issue's text."""
    examples: tuple[Example, ...] = ()
    """Worked exchanges between the system message and the first user message, for models that need
    to be shown the format: `[{user: ..., assistant: ...}, ...]`. They are prompt, never trained on;
    the library's own, synchronous `run` knows nothing of them."""
    step_limit: int = Field(default=DEFAULT_STEP_LIMIT, ge=0)
    """Turns after which an episode ends as `step_limit`; 0 sets no bound."""
    output_path: Path | None = None
    """Trajectory file, written after every step; `{instance_id}` and `{episode}` in it are filled
    in, or all episodes share one file."""

    @field_validator(
        "system_template", "instance_template", "observation_template", "format_error_template"
    )
    @classmethod
    def _compiles(cls, value: str) -> str:
        try:
            compiled(value)
        except TemplateSyntaxError as error:
            raise ValueError(f"line {error.lineno} of the template: {error.message}") from error
        return value

    @field_validator("output_path")
    @classmethod
    def _fills_in(cls, value: Path | None) -> Path | None:
        if value is not None:
            _filled(value, instance_id="i", episode="e")
        return value

    def agent_fields(self, sample: SWESample) -> dict[str, Any]:
        """Return the library's AgentConfig of one episode, as keyword arguments."""
        fields = self.model_dump(include=set(AgentConfig.model_fields))
        if self.output_path is not None:
            fields["output_path"] = _filled(
                self.output_path,
                instance_id=sample.m.data.instance_id,
                episode=sample.episode.key,
            )
        return fields

    def token_model_config(self) -> TokenModelConfig:
        """Return the model's part."""
        return TokenModelConfig(**self.model_dump(include=set(TokenModelConfig.model_fields)))


def _filled(path: Path, *, instance_id: str, episode: str) -> Path:
    safe = instance_id.replace("/", "_")
    try:
        return Path(str(path).format(instance_id=safe, episode=episode))
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(
            f"can hold {{instance_id}} and {{episode}} only; {error} is neither"
        ) from error
