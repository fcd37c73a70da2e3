"""Versions of what decides a run's outcome, for run.json and `--version`."""

from __future__ import annotations

import importlib.metadata
import platform

_DISTRIBUTIONS = ("agentflow-rl", "mini-swe-agent", "numpy", "tokenizers", "jinja2", "pydantic")


def versions() -> dict[str, str | None]:
    """Give the version of Python and of each distribution; None where it is not installed."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in _DISTRIBUTIONS:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found
