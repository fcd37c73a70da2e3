"""SampleSource: where an executor gets its samples; WorkerSource: a coordinator as one sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentflow.types import RolloutSample
    from executors.data.coordinator import DataCoordinator


class SampleSource(Protocol):
    """Where samples come from and go back to."""

    async def get_sample(self) -> RolloutSample | None:
        """Lease a sample, interrupted ones first; None when there will never be another."""
        ...

    async def put_data(self, sample: RolloutSample) -> bool:
        """Return a sample that has ended; False: it came too late, and is discarded."""
        ...

    async def put_partial(self, sample: RolloutSample) -> bool:
        """Return a sample that was interrupted; False: its lease had been given up."""
        ...

    def give_back(self, sample: RolloutSample) -> None:
        """Return a sample that was not begun."""
        ...

    def abandon(self, sample: RolloutSample) -> None:
        """Hear that a sample that nobody wants any more is worked on no more."""
        ...


class WorkerSource:
    """A coordinator as one of several workers sees it."""

    def __init__(self, coordinator: DataCoordinator, worker: str) -> None:
        self._coordinator = coordinator
        self._worker = worker

    async def get_sample(self) -> RolloutSample | None:
        """Lease a sample for this worker."""
        return await self._coordinator.get_sample(self._worker)

    async def put_data(self, sample: RolloutSample) -> bool:
        """Return a sample that has ended."""
        return await self._coordinator.put_data(sample, self._worker)

    async def put_partial(self, sample: RolloutSample) -> bool:
        """Return a sample that was interrupted."""
        return await self._coordinator.put_partial(sample, self._worker)

    def give_back(self, sample: RolloutSample) -> None:
        """Return a sample that was not begun."""
        self._coordinator.give_back(sample, self._worker)

    def abandon(self, sample: RolloutSample) -> None:
        """Hear that a sample that nobody wants any more is worked on no more."""
        self._coordinator.abandon(sample, self._worker)
