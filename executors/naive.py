"""NaiveExecutor: rolls out whole trajectories, up to a number of them at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.errors import EpisodeError, RolloutGenerationAborted
from agentflow.outcomes import make_fallback
from executors.dispatch import Dispatch
from executors.processing import post_process, pre_process
from executors.room import Room

if TYPE_CHECKING:
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.naive_flow import NaiveFlow
    from agentflow.types import RolloutSample, SyncMode
    from executors.source import SampleSource


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
        self.slots = max_concurrency
        """Samples under way at once."""
        self._dispatch = Dispatch(
            source, self._rollout, room=Room(max_concurrency), let_go=self._let_go
        )

    async def run(self) -> None:
        """Roll out samples until the source has none left, or `stop`.

        A bug in one trajectory cancels the others and is raised; cancelling `run` removes every
        environment before it returns.
        """
        await self._dispatch.run()

    def stop(self) -> None:
        """Let `run` return once what it has started has ended."""
        self._dispatch.stop()

    def withdraw(self, sample: RolloutSample) -> None:
        """End a sample that nobody wants any more, and remove its environment."""
        self._dispatch.withdraw(sample)

    async def _let_go(self, sample: RolloutSample) -> None:
        await self._rollout_flow.give_up(sample)

    # --- weight updates -----------------------------------------------------------------------

    def pause_dispatch(self) -> None:
        """Start nothing new, for example during a weight update."""
        self._dispatch.pause()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        self._dispatch.resume()

    async def pause_generations(self, mode: SyncMode) -> None:
        """Leave the generations in flight to the engine, which holds new ones while paused."""

    async def resume_generations(self) -> None:
        """Nothing was held back here."""

    # --- one sample ---------------------------------------------------------------------------

    async def _rollout(self, sample: RolloutSample) -> None:
        if await self.generate(sample) is not None:
            await self._source.put_data(sample)

    async def generate(self, sample: RolloutSample) -> RolloutSample | None:
        """Roll out one sample; None when it was interrupted and went to the partial queue."""
        try:
            pre_process(sample, self._renderer)
            await self._rollout_flow(sample)
        except RolloutGenerationAborted:
            await self._source.put_partial(sample)
            return None
        except EpisodeError as exc:
            make_fallback(sample, exc.ending())
        post_process(sample)
        return sample

    def gauges(self) -> dict[str, float]:
        """Trajectories under way."""
        return {"running": self._dispatch.running}
