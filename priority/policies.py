"""Who goes first: a policy gives each waiting item a class (high or low) and a rank within it.

Pure functions of what is known of an item; the queues do the rest. Ageing stands above them all: an
item that has waited too long goes first whatever its class, so no policy can starve one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable


@dataclass(slots=True, kw_only=True, eq=False)
class Standing:
    """What a policy may know of an item, and only reads."""

    order: int
    """Arrival number; lower came earlier."""
    predicted: float | None = None
    """Predicted tokens still to generate; None while nothing is known."""
    group_left: int | None = None
    """Episodes of its group that have not ended, itself included."""


class Priority(NamedTuple):
    """A policy's answer; one is made for every action, and a tuple is the fastest to make."""

    high: bool = False
    """High goes before low, and may preempt a low generation."""
    rank: float = 0.0
    """Lower goes first within its class; ties go by the time of queueing."""


_ALIKE = Priority()

AGE_S = 120.0
"""Seconds. Episodes that go on stand before those that have not begun, whatever their ranks:
without an age the last begin when the others have ended, which costs more than an order brings. It
is some turns long, so that ranks decide among those that go on."""


@runtime_checkable
class Policy(Protocol):
    """Decides classes and ranks.

    It may have an `age_s`: seconds of waiting for a generation after which an item goes first,
    unless the configuration says otherwise; else that is `AGE_S`.
    """

    @property
    def preempts(self) -> bool:
        """Whether a waiting high item may abort a low generation."""
        ...

    def classify(self, standing: Standing) -> Priority:
        """Give the item its class and rank, now."""
        ...


@dataclass(frozen=True, slots=True)
class Fcfs:
    """First come, first served: everything is low and ranks by the time it was queued."""

    preempts: ClassVar[bool] = False
    age_s: float = 0.0
    """Whoever waits has aged, so that even a new episode keeps its turn: all advance alike, and
    few are left at the end that have not begun."""

    def __post_init__(self) -> None:
        if not self.age_s >= 0:
            raise ValueError(f"age_s: {self.age_s} must be at least 0")

    def classify(self, standing: Standing) -> Priority:  # noqa: ARG002  # that is the policy
        """All alike."""
        return _ALIKE


def age_of(policy: Policy) -> float:
    """Return the policy's `age_s`, or `AGE_S` where it has none."""
    age_s: float = getattr(policy, "age_s", AGE_S)
    return age_s


@dataclass(frozen=True, slots=True)
class FcfsPreempt:
    """First come, first served by arrival of the *episode*: the first `window` may preempt others.

    Episodes that arrived early finish early, which closes groups in order.
    """

    window: int
    """How many of the earliest arrivals are high."""
    preempts: bool = True

    def __post_init__(self) -> None:
        if self.window < 0:
            raise ValueError(f"window: {self.window} must be at least 0")

    def classify(self, standing: Standing) -> Priority:
        """High for the earliest arrivals, ranked by arrival."""
        return Priority(high=standing.order < self.window, rank=standing.order)


@dataclass(frozen=True, slots=True)
class LongestPredictedFirst:
    """For a synchronous step: what will take longest must not start last."""

    high_above: float = float("inf")
    """Predicted tokens from which on an item is high."""
    preempts: bool = False

    def __post_init__(self) -> None:
        if not self.high_above >= 0:
            raise ValueError(f"high_above: {self.high_above} must be at least 0 tokens")
        if self.preempts and self.high_above == float("inf"):
            raise ValueError("high_above: is missing; without it nobody is high, to preempt others")

    def classify(self, standing: Standing) -> Priority:
        """Rank by predicted length, longest first; the unknown goes before the known."""
        if standing.predicted is None:
            return Priority(rank=float("-inf"))
        return Priority(high=standing.predicted >= self.high_above, rank=-standing.predicted)


@dataclass(frozen=True, slots=True)
class ShortestPredictedFirst:
    """For asynchronous training: the lowest mean completion time."""

    preempts: ClassVar[bool] = False

    def classify(self, standing: Standing) -> Priority:
        """Rank by predicted length, shortest first; the unknown goes last."""
        if standing.predicted is None:
            return Priority(rank=float("inf"))
        return Priority(rank=standing.predicted)


@dataclass(frozen=True, slots=True)
class GroupCompletion:
    """Groups that are nearly complete go first, so that trainers get whole groups early."""

    preempts: ClassVar[bool] = False

    def classify(self, standing: Standing) -> Priority:
        """Rank by how many of the group are still missing."""
        return Priority(rank=float("inf") if standing.group_left is None else standing.group_left)
