"""ChatTemplate: a model's Jinja chat template, compiled once, in the environment that it expects.

The environment is the one that Hugging Face gives templates: sandboxed, blocks trimmed, with
`raise_exception`, `strftime_now`, loop controls and `{% generation %}`. The date that a template
may print is an argument, so that every episode of a run sees the same prompt.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING, Any, Final, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.parser import Parser

    from agentflow.types import Message

DEFAULT_DATE: Final = dt.datetime(2024, 7, 26, tzinfo=dt.UTC)
"""What Llama 3's template itself assumes when nobody tells it the date."""


class TemplateRefused(ConfigError):
    """The template raised on these messages: a role it does not know, an order it forbids."""


class ChatTemplate:
    """Renders messages to text."""

    def __init__(
        self,
        source: str,
        *,
        name: str,
        variables: Mapping[str, Any],
        now: dt.datetime = DEFAULT_DATE,
    ) -> None:
        """`name` is for messages; `variables` are bos_token and what else the template reads."""
        self.name = name
        self._variables = dict(variables)
        try:
            self._template = _environment(now).from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(
                f"chat template of {name}, line {error.lineno}: {error.message}"
            ) from None

    def render(self, messages: Sequence[Message], *, prompt: bool) -> str:
        """Render a conversation; `prompt` adds what invites the assistant's answer.

        Raises TemplateRefused when the template refuses these messages.
        """
        plain = [{"role": m["role"], "content": m["content"]} for m in messages]
        try:
            return self._template.render(
                {"tools": None, "documents": None, **self._variables},
                messages=plain,
                add_generation_prompt=prompt,
            )
        except (jinja2.TemplateError, TypeError, KeyError, AttributeError, IndexError) as error:
            roles = ", ".join(str(m["role"]) for m in messages)
            raise TemplateRefused(
                f"the chat template of {self.name} refuses the roles ({roles}): {error}"
            ) from None


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}`: marks for training masks, which we have exactly."""

    tags = {"generation"}  # noqa: RUF012  # the base class declares it so

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(now: dt.datetime) -> jinja2.Environment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = now.strftime
    return environment


def _to_json(value: Any, indent: int | None = None) -> str:
    """Give JSON without HTML escapes, unlike jinja2's own filter."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
