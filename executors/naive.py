"""NaiveExecutor: rolls out whole trajectories, up to a number of them at a time.

Takes a slot before it takes a sample, so that it never holds one that another worker could run, and
takes none while dispatch is paused for a weight update.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agentflow.aio import boundary
from agentflow.errors import EpisodeError, PreprocessFailed, RolloutGenerationAborted
from agentflow.outcomes import make_fallback

if TYPE_CHECKING:
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.naive_flow import NaiveFlow
    from agentflow.types import RolloutSample


class SampleSource(Protocol):
    """Where samples come from and go back to."""

    async def get_sample(self) -> RolloutSample | None:
        """Lease a sample, interrupted ones first; None when there will never be another."""
        ...

    async def put_data(self, sample: RolloutSample) -> None:
        """Return a sample that has ended."""
        ...

    async def put_partial(self, sample: RolloutSample) -> None:
        """Return a sample that was interrupted."""
        ...


class NaiveExecutor:
    """Drives a rollout flow over the samples of a source (trajectory-level scheduling)."""

    def __init__(
        self,
        rollout_flow: NaiveFlow,
        source: SampleSource,
        *,
        renderer: ChatRenderer,
        max_concurrency: int,
    ) -> None:
        """`max_concurrency` is the number of live trajectories; `renderer` tokenises prompts."""
        if max_concurrency < 1:
            raise ValueError(f"max_concurrency is {max_concurrency}; it must be at least 1")
        self._rollout_flow = rollout_flow
        self._source = source
        self._renderer = renderer
        self._slots = asyncio.Semaphore(max_concurrency)
        self._dispatch_resumed = asyncio.Event()
        self._dispatch_resumed.set()
        self._stopped = asyncio.Event()

    def pause_dispatch(self) -> None:
        """Start nothing new, for example during a weight update."""
        self._dispatch_resumed.clear()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        self._dispatch_resumed.set()

    def stop(self) -> None:
        """Let `run` return once what it has started has ended."""
        self._stopped.set()
        self._dispatch_resumed.set()

    async def run(self) -> None:
        """Roll out samples until the source has none left, or `stop`.

        A bug in one trajectory cancels the others and is raised; cancelling `run` removes every
        environment before it returns.
        """
        async with asyncio.TaskGroup() as tasks:
            while not self._stopped.is_set():
                await self._wait_dispatch_resumed()
                await self._slots.acquire()
                sample = await self._source.get_sample()
                if sample is None:
                    break
                await self._wait_dispatch_resumed()  # paused or stopped while waiting for it
                if self._stopped.is_set():
                    await self._source.put_partial(sample)
                    break
                task = tasks.create_task(self._rollout(sample), name=str(sample.episode))
                task.add_done_callback(self._release)

    async def _wait_dispatch_resumed(self) -> None:
        await self._dispatch_resumed.wait()

    def _release(self, _task: asyncio.Task[None]) -> None:
        self._slots.release()

    async def _rollout(self, sample: RolloutSample) -> None:
        if await self.generate(sample) is not None:
            await self._source.put_data(sample)

    async def generate(self, sample: RolloutSample) -> RolloutSample | None:
        """Roll out one sample; None when it was interrupted and went to the partial queue."""
        try:
            self._pre_process(sample)
            await self._rollout_flow(sample)
        except RolloutGenerationAborted:
            await self._source.put_partial(sample)
            return None
        except EpisodeError as exc:
            make_fallback(sample, exc.ending())
        self._post_process(sample)
        return sample

    def _pre_process(self, sample: RolloutSample) -> None:
        """Tokenise a validation prompt that came as messages; copy ids into `prompts`."""
        with boundary(PreprocessFailed):
            if sample.validate and not len(sample.raw_prompt_ids) and sample.raw_prompt:
                ids = self._renderer.opening(sample.raw_prompt)
                sample.raw_prompt_ids = np.array(ids, np.int32)
        sample.prompts = sample.raw_prompt_ids

    def _post_process(self, sample: RolloutSample) -> None:
        assert sample.ending is not None, f"{sample.episode} ended without saying why"
        if not len(sample.responses):
            make_fallback(sample, sample.ending)
