"""Faults: what a FakeSglang does wrong; change the fields of a running one."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class Faults:
    """Everything is well at first. Counts go down by one with each fault committed."""

    first_byte_delay_s: float = 0.0
    """Before the status line of a generation."""
    cut_after_tokens: int | None = None
    """Break the connection in the middle of the event after so many tokens; once."""
    garbage_after_tokens: int | None = None
    """Send an event that is no JSON after so many tokens, and no more; once."""
    end_after_tokens: int | None = None
    """End the stream in good order, without a finish reason, after so many tokens; once."""
    silent_after_tokens: int | None = None
    """Send nothing more after so many tokens, 0 not even the header, while the socket is open."""
    duplicate_events: bool = False
    """Send every event twice."""
    overloaded: int = 0
    """Answer so many generations with "The request queue is full."."""
    broken_requests: int = 0
    """Answer so many generations with HTTP 500 and a text."""
    lost_aborts: int = 0
    """Answer so many aborts and do nothing."""
    failing_calls: dict[str, int] = field(default_factory=dict)
    """How many more calls of a path (`/pause_generation`) are answered with HTTP 500."""
    lost_answers: dict[str, int] = field(default_factory=dict)
    """How many more calls of a path are carried out, and the connection broken then."""
    hanging_calls: dict[str, int] = field(default_factory=dict)
    """How many more calls of a path are never answered, nor carried out."""
    refused_updates: int = 0
    """Answer so many weight updates with `success: false`."""

    def takes(self, name: str) -> bool:
        """Whether the counted fault `name` is to be committed now; counts it."""
        left = getattr(self, name)
        if left > 0:
            setattr(self, name, left - 1)
        return bool(left > 0)

    def takes_call(self, name: str, path: str) -> bool:
        """Whether the fault `name` is to be committed at this call of `path`; counts it."""
        calls: dict[str, int] = getattr(self, name)
        left = calls.get(path, 0)
        calls[path] = max(left - 1, 0)
        return left > 0

    def takes_at(self, name: str, tokens: int) -> bool:
        """Whether the fault `name` is due at `tokens`; it happens once."""
        due = getattr(self, name)
        if due is None or tokens < due:
            return False
        setattr(self, name, None)
        return True
