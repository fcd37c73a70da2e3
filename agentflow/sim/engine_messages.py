"""What is said to a simulated engine, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from agentflow.sim.sequence import Sequence
    from agentflow.types import SyncMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """A new request."""

    seq: Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Abort:
    """End every request whose rid starts with `rid`, if a request `rid` is there."""

    rid: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortAll:
    """End every request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """Stop generating; new requests are held from now on."""

    ticket: int
    mode: SyncMode


@dataclass(frozen=True, slots=True, kw_only=True)
class Continue:
    """Go on."""

    ticket: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """Load weights: at once while paused, else when everything has ended."""

    ticket: int
    version: int
    flush: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Flush:
    """Forget cached prefixes."""

    ticket: int


Message: TypeAlias = Submit | Abort | AbortAll | Pause | Continue | Update | Flush


class End(StrEnum):
    """How a request ended."""

    DONE = "done"
    ABORTED = "aborted"
    DIED = "died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A request has its first token."""

    seq: Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A request ended."""

    seq: Sequence
    end: End


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A pause, continuation, update or flush took effect, or was refused with a reason."""

    ticket: int
    refusal: str | None = None


Answer: TypeAlias = Started | Ended | Answered
