"""Event sinks: nowhere, and a list for whoever wants to look at what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


class NullEvents:
    """Drops every event."""

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Do nothing."""
