"""InProcessSource: samples from memory, for runs without a trainer.

Owns which samples are queued, leased to an executor, interrupted, or ended. A leased sample comes
back exactly once, by `put_data` or `put_partial`; interrupted ones are handed out before new ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agentflow.types import EpisodeId, RolloutSample


class InProcessSource:
    """A `SampleSource` over a fixed list of samples."""

    def __init__(
        self,
        samples: Iterable[RolloutSample],
        *,
        on_ended: Callable[[RolloutSample], None] | None = None,
    ) -> None:
        """`on_ended` sees every sample once, when it has ended."""
        self._new = deque(samples)
        self._partial: deque[RolloutSample] = deque()
        self._leased: set[EpisodeId] = set()
        self._changed = asyncio.Condition()
        self._on_ended = on_ended

    async def get_sample(self) -> RolloutSample | None:
        """Lease the next sample; waits while leased ones may still come back; None: all ended."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._partial or self._new or not self._leased)
            if not (self._partial or self._new):
                return None
            sample = self._partial.popleft() if self._partial else self._new.popleft()
            self._leased.add(sample.episode)
            return sample

    async def put_data(self, sample: RolloutSample) -> None:
        """Take back a sample that has ended; told to `on_ended` before anything can interrupt."""
        self._end_lease(sample)
        if self._on_ended is not None:
            self._on_ended(sample)
        await self._tell()

    async def put_partial(self, sample: RolloutSample) -> None:
        """Take back a sample that was interrupted and can go on."""
        self._end_lease(sample)
        self._partial.append(sample)
        await self._tell()

    def _end_lease(self, sample: RolloutSample) -> None:
        if sample.episode not in self._leased:
            raise ValueError(f"{sample.episode} is not leased, so it cannot come back")
        self._leased.remove(sample.episode)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
