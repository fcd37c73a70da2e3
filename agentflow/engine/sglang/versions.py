"""Weight versions as SGLang writes them (strings) and as samples carry them (integers)."""

from __future__ import annotations

from agentflow.errors import EngineRejected

UNSET = "default"
"""What a server calls weights that nobody named."""


def parse_version(text: object) -> int:
    """Return the integer version; the server's `default` is 0. Raises EngineRejected."""
    if text == UNSET:
        return 0
    if isinstance(text, str) and text.isascii() and text.isdigit():
        return int(text)
    raise EngineRejected(
        f"weight version {text!r} is not a whole number: name versions 0, 1, 2, ... in weight "
        "updates and in --weight-version"
    )
