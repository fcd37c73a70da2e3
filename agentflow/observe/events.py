"""Event sinks: nowhere, and a list for whoever wants to look at what happened."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.types import EpisodeId


class NullEvents:
    """Drops every event."""

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Do nothing."""


class ListEvents:
    """Keeps every event in memory, in order; for tests and small tools."""

    def __init__(self) -> None:
        self.events: list[tuple[str, EpisodeId | None, dict[str, Any]]] = []
        """`(kind, episode, facts)`."""

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Append the event."""
        self.events.append((kind, episode, facts))

    def kinds(self) -> list[str]:
        """Kinds alone, in order."""
        return [kind for kind, _, _ in self.events]
