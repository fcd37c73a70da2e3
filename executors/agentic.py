"""AgenticExecutor: feeds an action-level flow with samples, and brings back how each one ended.

Owns the window of episodes that the flow works on, and what becomes of an interruption; what runs
next inside the window is the flow's decision. Every sample it takes is put back exactly once: as
data, as a fallback, or as a partial one.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentflow.errors import (
    AgentflowError,
    EpisodeError,
    GenerationAborted,
    RolloutGenerationAborted,
)
from agentflow.outcomes import make_fallback, save_partial, write_off
from agentflow.swe.sample import SWESample
from agentflow.types import Cause, Ending
from executors.dispatch import Dispatch
from executors.processing import post_process, pre_process
from executors.room import Room

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agentflow.engine.renderer import ChatRenderer
    from agentflow.protocols import Runner
    from agentflow.types import EpisodeId, RolloutSample, SyncMode
    from executors.source import SampleSource
    from priority.snapshot import PrioritySnapshot

MAX_ASYNC_FACTOR = 1.5
"""Environments started further ahead cost memory and hide no more of their start."""

REFRESH_S = 0.25
"""A snapshot of 10,000 episodes costs a millisecond: refreshed so often it takes 0.4 % of a core,
and is younger than most turns."""

_NAMED = 20
"""Episodes that a stall names; the rest are counted."""

logger = logging.getLogger(__name__)


class RolloutStalled(AgentflowError):
    """Episodes are under way and none has moved for too long."""


@runtime_checkable
class ActionLevelFlow(Protocol):
    """A flow that schedules the actions of the episodes submitted to it."""

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Make the flow's own sample; raises PreprocessFailed."""
        ...

    async def submit_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Run an episode to its end and fill `dc_sample` in; raises RolloutGenerationAborted."""
        ...

    async def give_up(self, sample: SWESample) -> None:
        """Remove the environment of an interrupted episode that will not go on."""
        ...

    async def pause_generations(self, mode: SyncMode) -> None:
        """Let no generation start; return when the mode's condition for an update holds."""
        ...

    async def resume_generations(self) -> None:
        """Dispatch generations again."""
        ...

    def on_judged(self, call: Callable[[EpisodeId], None]) -> None:
        """Call `call`, on the flow worker, with every episode from when it waits for a judge."""
        ...

    def use_snapshot(self, snapshot: PrioritySnapshot) -> None:
        """Make priorities from `snapshot` from now on."""
        ...

    @property
    def progress(self) -> int:
        """Counts up whenever an episode moves."""
        ...

    def gauges(self) -> Mapping[str, float]:
        """Episodes by stage."""
        ...

    def whereabouts(self) -> Sequence[str]:
        """Say of every episode where it is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgenticSettings:
    """How an AgenticExecutor works."""

    window: int
    """Episodes submitted to the flow at once."""
    judged: int = 0
    """Of these, places for episodes that only wait to be judged, and for no others."""
    max_attempts: int = 32
    """Times that one episode may be begun; then it ends as a fallback."""
    status_s: float = 30.0
    """Seconds between two looks at the flow, each of which logs one line."""
    stall_s: float = 7200.0
    """Seconds without any episode moving after which the run fails, naming them."""


class AgenticExecutor:
    """Drives an action-level flow over the samples of a source."""

    def __init__(
        self,
        flow: ActionLevelFlow,
        source: SampleSource,
        *,
        renderer: ChatRenderer,
        runner: Runner,
        settings: AgenticSettings,
        get_priority_snapshot: Callable[[], PrioritySnapshot] | None = None,
    ) -> None:
        """`get_priority_snapshot` is the coordinator's; without it priorities know no lengths."""
        if settings.window <= settings.judged:
            raise ValueError(f"window is {settings.window}; it must be above {settings.judged}")
        self._flow = flow
        self._source = source
        self._renderer = renderer
        self._runner = runner
        self._settings = settings
        self._get_priority_snapshot = get_priority_snapshot
        self.slots = settings.window - settings.judged
        """Samples under way at once, beside those that only wait to be judged."""
        room = Room(self.slots, judged=settings.judged)
        self._dispatch = Dispatch(source, self._run_rollout, room=room, let_go=self._let_go)
        if settings.judged:
            flow.on_judged(self._dispatch.is_judged)
        self._refresh_at = float("-inf")
        self.ended = self.interrupted = self.fallbacks = 0

    async def run(self) -> None:
        """Roll out samples until the source has none left, or `stop`.

        A bug in one episode cancels the others and is raised, as is RolloutStalled; cancelling
        `run` removes every environment before it returns.
        """
        self._refresh_priorities()
        async with asyncio.TaskGroup() as tasks:
            status = tasks.create_task(self._rollout_status(), name="rollout status")
            await self._dispatch.run()
            status.cancel()

    def stop(self) -> None:
        """Let `run` return once what it has started has ended."""
        self._dispatch.stop()

    def withdraw(self, sample: RolloutSample) -> None:
        """End a sample that nobody wants any more, and remove its environment."""
        self._dispatch.withdraw(sample)

    async def _let_go(self, sample: RolloutSample) -> None:
        if isinstance(sample.partial_agent_data, SWESample):
            await self._flow.give_up(sample.partial_agent_data)

    # --- weight updates -----------------------------------------------------------------------

    def pause_dispatch(self) -> None:
        """Start nothing new, for example during a weight update."""
        self._dispatch.pause()

    def resume_dispatch(self) -> None:
        """Go on starting samples."""
        self._dispatch.resume()

    async def pause_generations(self, mode: SyncMode) -> None:
        """Pause the flow's generations."""
        await self._flow.pause_generations(mode)

    async def resume_generations(self) -> None:
        """Let the flow generate again."""
        await self._flow.resume_generations()

    # --- one sample ---------------------------------------------------------------------------

    async def _run_rollout(self, sample: RolloutSample) -> None:
        flow_sample: SWESample | None = None
        try:
            pre_process(sample, self._renderer)
            flow_sample = await self._flow.preprocess(sample)
            await self._flow.submit_sample(flow_sample, sample)
        except RolloutGenerationAborted:  # the flow has saved it
            if await self._put_partial(sample, flow_sample):
                return
        except GenerationAborted as exc:  # the flow has not: an abort that it did not expect
            if flow_sample is None:
                make_fallback(sample, _sync_ending(str(exc)))
            else:
                save_partial(flow_sample, sample)
                if await self._put_partial(sample, flow_sample):
                    return
        except EpisodeError as exc:
            make_fallback(sample, exc.ending())
        post_process(sample)
        self.ended += 1
        self.fallbacks += sample.remove_sample
        await self._source.put_data(sample)
        self._refresh_priorities()

    async def _put_partial(self, sample: RolloutSample, flow_sample: SWESample | None) -> bool:
        """Queue an interrupted sample; False: it was begun too often and is a fallback now."""
        if sample.attempt < self._settings.max_attempts:
            self.interrupted += 1
            await self._source.put_partial(sample)
            return True
        make_fallback(sample, _sync_ending(f"was interrupted {sample.attempt} times"))
        if flow_sample is not None:
            write_off(flow_sample, sample)
            await self._flow.give_up(flow_sample)
        return False

    # --- in view ------------------------------------------------------------------------------

    def gauges(self) -> dict[str, float]:
        """Episodes of the window by the flow's stages, and how samples came back."""
        return {
            **self._flow.gauges(),
            "window": self._settings.window,
            "running": self._dispatch.running,
            "paused": self._dispatch.paused,
            "ended": self.ended,
            "interrupted": self.interrupted,
            "fallbacks": self.fallbacks,
        }

    async def _rollout_status(self) -> None:
        """Log one line now and then, and raise RolloutStalled when nothing moves."""
        settings = self._settings
        still_s, before = 0.0, -1
        while True:
            await asyncio.sleep(settings.status_s)
            self._refresh_priorities()
            gauges = self.gauges()
            logger.info("rollout: %s", " ".join(f"{k}={v:g}" for k, v in gauges.items() if v))
            moved = self._flow.progress != before
            if moved or self._dispatch.paused or not self._dispatch.running:
                still_s, before = 0.0, self._flow.progress
                continue
            still_s += settings.status_s
            if still_s >= settings.stall_s:
                raise RolloutStalled(_stall_message(self._flow.whereabouts(), still_s))

    def _refresh_priorities(self) -> None:
        """Bring the flow what the coordinator knows, at most every `REFRESH_S`."""
        now = self._runner.now()
        if self._get_priority_snapshot is not None and now >= self._refresh_at:
            self._refresh_at = now + REFRESH_S
            self._flow.use_snapshot(self._get_priority_snapshot())


def _sync_ending(message: str) -> Ending:
    return Ending(cause=Cause.WEIGHT_SYNC, phase="generation", message=message)


def _stall_message(whereabouts: Sequence[str], still_s: float) -> str:
    named = ", ".join(whereabouts[:_NAMED])
    more = f" and {len(whereabouts) - _NAMED} more" if len(whereabouts) > _NAMED else ""
    return f"no episode has moved for {still_s:g} s: {named}{more}"
