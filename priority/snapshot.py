"""PrioritySnapshot: what a coordinator knows of the episodes in flight, at one moment.

Immutable and numbered: a flow may read it on any thread while the coordinator goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class PrioritySnapshot:
    """One version of what priorities are made from."""

    version: int = 0
    """Counts up with every change."""
    predicted: Mapping[Any, float] = field(default_factory=dict)
    """Predicted tokens still to generate, by episode; unknown ones are absent."""
    group_left: Mapping[str, int] = field(default_factory=dict)
    """Episodes that have not ended, by the uid that their group shares."""
