"""Watch: looks on while a run goes: metrics, queues, stalls, and at its end the trace.

    events.jsonl ─▶ RunState ─▶ metrics.jsonl, Prometheus, RolloutStalled
    flow's queues, gauges ────▶ queues.json (who waits, in order, and why so; for environments too)
    events.jsonl, at the end ─▶ trace.json

Owns nothing of the run. It reads the events that the run writes anyway, so that watching costs the
loops of the run nothing but a timer each.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter, defaultdict
from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import orjson

from agentflow.observe.doing import Doing
from agentflow.observe.figures import figures, flat
from agentflow.observe.records import EventFile
from agentflow.observe.run_state import RunState
from agentflow.observe.run_trace import RunTrace
from executors.agentic import RolloutStalled
from executors.runs.files import LineFile, write_atomic, write_chunks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from agentflow.config import AgentflowConfig
    from agentflow.observe.figures import Figure
    from agentflow.observe.jsonl import JsonlEvents
    from agentflow.observe.run_state import Progress
    from agentflow.protocols import Runner

PROBE_S = 0.5
"""Between two looks at how late a loop's timers are; each costs some microseconds."""

_NAMED = 20
"""Episodes that a stall names; the rest are counted."""

logger = logging.getLogger(__name__)


@runtime_checkable
class Ranks(Protocol):
    """A flow that can tell who waits for what, in which order."""

    async def ranking(self) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """Give the waiting episodes of each queue, the one that is next first."""
        ...


@runtime_checkable
class TellsEnvironments(Protocol):
    """A flow that can tell what its environments wait for."""

    def env_gauges(self) -> Mapping[str, Mapping[str, float]]:
        """Give what `agentflow.protocols.Gauging` tells; callable on any thread."""
        ...


class Watch:
    """Watches one run directory; `run` it beside the work, then `finish`."""

    def __init__(
        self,
        folder: Path,
        events: JsonlEvents,
        *,
        runner: Runner,
        config: AgentflowConfig,
        held: bool = False,
    ) -> None:
        """`held` says that a trainer may keep queued episodes waiting, which is no stall."""
        self._folder = folder
        self._events = events
        self._flows: Sequence[Ranks] = ()
        self._environments: Sequence[TellsEnvironments] = ()
        self._runner = runner
        self._settings = config.observe
        self._stall_s = config.rollout.stall_s
        self._held = held
        self._lock = threading.Lock()
        self._file = EventFile(folder / "events.jsonl")
        self._state = RunState()
        self._lags: dict[str, float] = {}
        self._metrics: LineFile | None = None
        self._parts = ExitStack()
        self.url: str | None = None
        """Where metrics are served."""

    def use(self, flows: Sequence[object]) -> None:
        """Show the queues of `flows`, where they can tell them."""
        self._flows = [flow for flow in flows if isinstance(flow, Ranks)]
        self._environments = [flow for flow in flows if isinstance(flow, TellsEnvironments)]

    def serve(self) -> None:
        """Serve metrics, where they are asked for. Raises ConfigError when they cannot be."""
        settings = self._settings
        if settings.metrics_port is None:
            return
        from executors.watching.prometheus import MetricsServer  # noqa: PLC0415  # few runs need it

        server = MetricsServer(self.look, host=settings.metrics_host, port=settings.metrics_port)
        self._parts.callback(server.close)
        self.url = server.url

    def close(self) -> None:
        """Serve no more. Idempotent."""
        self._parts.close()

    # --- while it runs ------------------------------------------------------------------------

    async def run(self) -> None:
        """Look on until cancelled. Raises RolloutStalled, and OutputError."""
        if self.url is not None:
            self._events.emit("metrics_served", url=self.url)
        every_s = min(self._settings.metrics_s, self._stall_s / 2)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._probe("main"), name="loop lag")
            flow = self._runner.on_flow_worker(self._probe("flow"))
            tasks.create_task(flow, name="loop lag of the flow worker")
            while True:
                await asyncio.sleep(every_s)
                await self._look_on()

    async def _look_on(self) -> None:
        queues: dict[str, list[Mapping[str, Any]]] = {}
        for flow in self._flows:
            for name, line in (await self._runner.on_flow_worker(flow.ranking())).items():
                queues.setdefault(name, []).extend(line)
        gauges = self._gauges()
        if self._flows or gauges:
            wall = self._runner.wall_time()
            told = {"wall": wall, "queues": queues, "environments": gauges}
            await self._runner.to_thread(self._save_queues, told)
        await self._runner.to_thread(self._save_metrics)
        message = self._stall()
        if message is not None:
            self._events.emit("stalled", message=message)
            logger.error("%s", message)
            raise RolloutStalled(message)

    async def _probe(self, name: str) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PROBE_S
            await asyncio.sleep(PROBE_S)
            self._lags[name] = max(self._lags.get(name, 0.0), loop.time() - due)

    def look(self) -> list[Figure]:
        """Give every metric as of now; callable from any thread."""
        with self._lock:
            self._events.flush()
            self._state.fold(self._file.new())
            lags, gauges = dict(self._lags), self._gauges()
            return figures(self._state, now=self._now(), lags=lags, gauges=gauges)

    def _gauges(self) -> Mapping[str, Mapping[str, float]]:
        gauges: dict[str, Counter[str]] = defaultdict(Counter)
        for flow in self._environments:
            for stage, values in flow.env_gauges().items():
                gauges[stage].update(values)
        return gauges

    def _now(self) -> float:
        if self._state.status is not None:
            return self._state.last
        return max(self._file.time_of(self._runner.now()), self._state.last)

    def _save_metrics(self) -> None:
        values = flat(self.look())
        self._lags.clear()
        line = {"wall": self._runner.wall_time(), **values}
        if self._metrics is None:
            self._metrics = LineFile(self._folder / "metrics.jsonl")
            self._parts.callback(self._metrics.close)
        self._metrics.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def _save_queues(self, queues: Mapping[str, Any]) -> None:
        write_atomic(self._folder / "queues.json", orjson.dumps(queues, default=str))

    # --- stalls -------------------------------------------------------------------------------

    def _stall(self) -> str | None:
        """Say who stands still, when nothing has happened for too long and there is work left."""
        with self._lock:
            state, now = self._state, self._now()
            still_s = now - state.last
            if still_s < self._stall_s or state.updating:
                return None
            idle = {Doing.ENDED, Doing.QUEUED, Doing.INTERRUPTED} if self._held else {Doing.ENDED}
            left = [p for p in state.episodes.values() if p.doing not in idle]
            return _stall_message(left, still_s, now) if left else None

    # --- at the end ---------------------------------------------------------------------------

    def finish(self, *, trace: bool) -> None:
        """Write the last line of metrics, and the trace; the events are closed by now.

        Raises OutputError.
        """
        self._save_metrics()
        if trace and self._settings.trace_events:
            drawn = RunTrace(limit=self._settings.trace_events)
            drawn.feed(EventFile(self._folder / "events.jsonl").new())
            drawn.close()
            write_chunks(self._folder / "trace.json", drawn.chunks())


def _stall_message(left: Sequence[Progress], still_s: float, now: float) -> str:
    left = sorted(left, key=lambda progress: progress.since)
    named = ", ".join(f"{p.episode} {p.doing} for {now - p.since:.0f} s" for p in left[:_NAMED])
    more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    return f"nothing has happened for {still_s:.1f} s: {named}{more}"
