"""Observers of the books: what hears of every move that must not be forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import Ending, RolloutSample
    from executors.data.groups import Group


class BookObserver:
    """Hears everything and does nothing; called under the coordinator's lock: it never waits."""

    def issued(self, samples: Sequence[RolloutSample]) -> None:
        """Samples were added."""

    def retried(self, sample: RolloutSample) -> None:
        """A sample starts anew."""

    def lost(self, sample: RolloutSample) -> None:
        """The worker that has a sample was given up; it may go on, and come too late."""

    def interrupted(self, sample: RolloutSample) -> None:
        """A sample waits to go on."""

    def dropped(self, sample: RolloutSample, ending: Ending) -> None:
        """A sample will not come to the trainer."""

    def replaced(self, sample: RolloutSample) -> None:
        """Another member of its group stands for a sample that was dropped."""

    def group_dropped(self, uid: str) -> None:
        """Nothing of a group will, or of what was left of it."""

    def delivered(self, group: Group) -> None:
        """The trainer takes a group, whose stand-ins are not samples of the ledger."""


class Observers(BookObserver):
    """Several of them, in order."""

    def __init__(self, *observers: BookObserver) -> None:
        self._observers = observers

    def issued(self, samples: Sequence[RolloutSample]) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.issued(samples)

    def retried(self, sample: RolloutSample) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.retried(sample)

    def lost(self, sample: RolloutSample) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.lost(sample)

    def interrupted(self, sample: RolloutSample) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.interrupted(sample)

    def dropped(self, sample: RolloutSample, ending: Ending) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.dropped(sample, ending)

    def replaced(self, sample: RolloutSample) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.replaced(sample)

    def group_dropped(self, uid: str) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.group_dropped(uid)

    def delivered(self, group: Group) -> None:
        """Pass it on."""
        for observer in self._observers:
            observer.delivered(group)
