"""Jinja templates as the library renders them, compiled once (a compile costs 100 renders)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from jinja2 import StrictUndefined, Template

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_TEMPLATES = 256
"""A run has four; users who render their own have a few more."""


@lru_cache(maxsize=MAX_TEMPLATES)
def compiled(text: str) -> Template:
    """Return the template of `text`; an unknown variable is an error when it is rendered.

    Raises jinja2.TemplateSyntaxError.
    """
    template: Template = Template(text, undefined=StrictUndefined)  # its __new__ says Any
    return template


def render(text: str, variables: Mapping[str, Any]) -> str:
    """Render the template `text`. Raises jinja2.UndefinedError for an unknown variable."""
    return compiled(text).render(variables)
