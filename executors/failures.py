"""What to say of a run in which several things failed at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from executors.agentic import RolloutStalled
from executors.runs.files import OutputError

if TYPE_CHECKING:
    from collections.abc import Iterator


def first_failure(group: BaseExceptionGroup[BaseException]) -> str:
    """Tell the failure that a person should know: one that says what is wrong, or the first."""
    leaves = list(_leaves(group))
    for leaf in leaves:
        if isinstance(leaf, OutputError | RolloutStalled):
            return str(leaf)
    return f"{type(leaves[0]).__name__}: {leaves[0]} (the traceback is in logs/agentflow.log)"


def expected_failure(
    group: BaseExceptionGroup[BaseException],
) -> OutputError | ConfigError | None:
    """Find the failure that a caller was told to expect, output that cannot be written first."""
    leaves = list(_leaves(group))
    for kind in (OutputError, ConfigError):
        for leaf in leaves:
            if isinstance(leaf, kind):
                return leaf
    return None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
