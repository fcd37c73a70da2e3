"""The one door to mini-swe-agent: what we use of it, imported quietly, or one clear error.

The library prints a banner, makes a folder in the home directory and reads a `.env` file there when
it is imported; two environment variables stop that. Nothing else in agentflow imports it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from agentflow.errors import ConfigError

SUPPORTED = (2, 4)
"""Major and minor version that our subclass agrees with, message for message."""

_HOW = "bring it with: pip install --no-deps 'mini-swe-agent>=2.4.6,<2.5'"


class LibraryMissing(ConfigError, ImportError):
    """mini-swe-agent is not there, or is a version that we do not agree with."""


os.environ.setdefault("MSWEA_SILENT_STARTUP", "1")
# A folder that exists and holds no `.env`: the library makes nothing and reads nothing.
os.environ.setdefault("MSWEA_GLOBAL_CONFIG_DIR", str(Path(__file__).parent))

try:
    from minisweagent import __version__
    from minisweagent.agents.default import AgentConfig, DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.exceptions import (
        FormatError,
        InterruptAgentFlow,
        LimitsExceeded,
        Submitted,
        TimeExceeded,
    )
    from minisweagent.models.utils.openai_multimodal import expand_multimodal_content
    from minisweagent.utils.serialize import recursive_merge
except ImportError as error:
    raise LibraryMissing(
        f"the agent needs mini-swe-agent >=2.4.6,<2.5 ({error}); {_HOW}"
    ) from error

if tuple(int(part) for part in __version__.split(".")[:2]) != SUPPORTED:
    raise LibraryMissing(
        f"the agent needs mini-swe-agent >=2.4.6,<2.5, but {__version__} is installed; {_HOW}"
    )


def check_finished(output: dict[str, Any]) -> None:
    """Raise the library's Submitted if a command's output says so, by the library's own rule."""
    LocalEnvironment._check_finished(None, output)  # type: ignore[arg-type]  # noqa: SLF001  # it uses no self


__all__ = [
    "AgentConfig",
    "DefaultAgent",
    "FormatError",
    "InterruptAgentFlow",
    "LibraryMissing",
    "LimitsExceeded",
    "LocalEnvironment",
    "Submitted",
    "TimeExceeded",
    "check_finished",
    "expand_multimodal_content",
    "recursive_merge",
]
