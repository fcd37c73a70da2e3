"""What scheduling itself costs: CPU of an action, beside the least that asyncio needs; memory.

The full flow (coordinator with its ledger, executor, scheduler, events in a file) with agents,
engine and environments that take no time, on one loop; and `overhead_skeleton` with the same queues
and as many tasks, in the same process. CPU seconds of the process, medians of rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import tempfile
import time
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.observe.jsonl import JsonlEvents
from agentflow.runner import AsyncioRunner
from agentflow.scheduling import Limits
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.agent.action_level import ActionLevelMiniSWEAgentBuilder
from agentflow.swe.scheduling_hooks import Scheduling
from agentflow.types import EpisodeId, RolloutSample
from benchmarks.overhead_parts import (
    InstantAgents,
    InstantEngine,
    InstantEnvs,
    InstantRuntimes,
    Renderer,
    access,
)
from benchmarks.overhead_skeleton import Skeleton
from benchmarks.report import output_file, positive, show, write_report
from executors.agentic import AgenticExecutor, AgenticSettings
from executors.data.coordinator import DataCoordinator
from executors.data.journal import Journal
from executors.hooks import CoordinatorHooks

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from agentflow.protocols import AgentBuilder

TURNS = 32
"""Of an episode: published trajectories have 30 (SWE-smith) and 34 (mini-swe-agent-plus) on
average. What an episode costs once weighs the less the more turns it has; `--turns` shows it."""
LIVE = (100, 10_000)
EPISODES = {100: 500, 10_000: 10_000}
"""Episodes of a round, by how many are live at once: enough that a round takes a second."""
SLOTS_SHARE = 0.25
"""Generations at once, of the live episodes."""
_PROFILE_LINES = 25
IDLE = 500
"""Episodes whose memory is measured together."""
GOALS = {"cpu_ratio_skeleton_10000": 2.5, "growth_100_to_10000": 1.3, "idle_episode_kb": 20.0}
"""What these may be at most. A busy machine misses them by chance; the gate judges, by ratios."""


class InlineRunner(AsyncioRunner):
    """Everything on one loop, so that what is measured is scheduling, not hand-over."""

    async def to_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run it here."""
        return fn(*args, **kwargs)

    async def on_flow_worker(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run it here."""
        return await coro


def main() -> None:
    """Run everything, print a table, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.overhead")
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--rounds", type=positive, default=5, help="medians are over so many")
    parser.add_argument("--turns", type=positive, default=TURNS, help="of an episode")
    parser.add_argument("--profile", action="store_true", help="then print where time goes")
    options = parser.parse_args()
    turns = options.turns
    figures = costs(options.rounds, turns) | {"idle_episode_kb": idle_episode_kb()}
    show(figures)
    for name, goal in GOALS.items():
        found = "reached" if figures[name] <= goal else "MISSED"
        print(f"{name:26} at most {goal:g}: {found}")
    config = {"rounds": options.rounds, "turns": turns, "episodes": EPISODES, "idle": IDLE}
    write_report(options.json, figures, config=config)
    if options.profile:
        profile(turns)


# --- CPU --------------------------------------------------------------------------------------


def costs(rounds: int, turns: int = TURNS) -> dict[str, float]:
    """Return microseconds of CPU per action, their ratios, and dispatches a second."""
    flows: dict[int, list[float]] = {live: [] for live in LIVE}
    bare: dict[int, list[float]] = {live: [] for live in LIVE}
    for _ in range(rounds):
        for live in LIVE:
            flows[live].append(_cpu_per_action(_flow(live, EPISODES[live], turns)))
            bare[live].append(_cpu_per_action(_skeleton(live, EPISODES[live], turns)))
    few, many = LIVE
    kept = [
        _cpu_per_action(_flow(few, EPISODES[few], turns, journalled=True)) / without
        for without in flows[few]
    ]
    figures = {f"us_per_action_{live}": statistics.median(flows[live]) * 1e6 for live in LIVE}
    figures |= {f"us_per_action_bare_{n}": statistics.median(bare[n]) * 1e6 for n in LIVE}
    figures[f"cpu_ratio_skeleton_{many}"] = _median_ratio(flows[many], bare[many])
    figures[f"growth_{few}_to_{many}"] = _median_ratio(flows[many], flows[few])
    figures[f"journal_cpu_ratio_{few}"] = statistics.median(kept)
    figures[f"dispatches_per_s_{many}"] = 1 / statistics.median(flows[many])
    return figures


def _median_ratio(ones: list[float], others: list[float]) -> float:
    return statistics.median(a / b for a, b in zip(ones, others, strict=True))


def _cpu_per_action(run: Coroutine[Any, Any, int]) -> float:
    gc.collect()
    began = time.process_time()
    actions = asyncio.run(run)
    return (time.process_time() - began) / actions


async def _skeleton(live: int, episodes: int, turns: int) -> int:
    slots = int(live * SLOTS_SHARE)
    skeleton = Skeleton(InstantEngine(), InstantEnvs(), generations=slots, live=live)
    await skeleton.run(episodes, turns)
    return skeleton.actions


async def _flow(live: int, episodes: int, turns: int, *, journalled: bool = False) -> int:
    with tempfile.TemporaryDirectory() as folder:
        runner = InlineRunner()
        events = JsonlEvents(Path(folder) / "events.jsonl", runner)
        engine = InstantEngine()
        journal = None
        if journalled:
            journal = Journal(Path(folder) / "journal.sqlite", keep_results=False, now=runner.now)
            journal.open()
            journal.start()
        world = _World(
            InstantAgents(engine),
            InstantEnvs(),
            engine,
            runner=runner,
            events=events,
            live=live,
            journal=journal,
        )
        world.add(episodes, turns)
        world.coordinator.finish()
        await world.executor.run()
        await world.flow.close()
        if journal is not None:
            journal.close()
            world.coordinator.take_groups()
        events.close()
    assert world.coordinator.counts().delivered == episodes
    return episodes * (1 + turns + turns - 1 + 1)  # start, generations, commands, reward


class _World:
    """A flow with everything around it; samples are taken as soon as their group is complete."""

    def __init__(
        self,
        agents: AgentBuilder,
        envs: InstantEnvs,
        engine: InstantEngine,
        *,
        runner: AsyncioRunner,
        events: JsonlEvents,
        live: int,
        journal: Journal | None = None,
    ) -> None:
        self.coordinator = DataCoordinator(runner=runner, journal=journal)
        limits = Limits(
            generations=int(live * SLOTS_SHARE),
            live=live,
            admitted=live,
            starts=live,
            commands=live,
            rewards=live,
        )
        hooks = CoordinatorHooks(self.coordinator, "local")
        self.flow = ActionLevelSWEAgentFlow(
            agents,
            envs,
            InstantRuntimes(),
            access(engine),
            scheduling=Scheduling(limits=limits, hooks=hooks),
            runner=runner,
            events=events,
            keeper=journal,
        )
        self.executor = AgenticExecutor(
            self.flow,
            _Delivering(self.coordinator),
            renderer=Renderer(),
            runner=runner,
            settings=AgenticSettings(window=live),
            get_priority_snapshot=self.coordinator.get_priority_snapshot,
        )

    def add(self, episodes: int, turns: int) -> None:
        """Issue groups of four."""
        task = {"instance_id": "t", "problem_statement": "p", "turns": turns}
        for i in range(0, episodes, 4):
            sample = RolloutSample(episode=EpisodeId(uid=f"u{i}"), task=task)
            self.coordinator.add_prompt(sample, n=min(4, episodes - i))


class _Delivering:
    """A source whose trainer takes every group at once."""

    def __init__(self, coordinator: DataCoordinator) -> None:
        self._coordinator = coordinator
        self.get_sample = coordinator.get_sample
        self.put_partial = coordinator.put_partial
        self.give_back = coordinator.give_back
        self.abandon = coordinator.abandon

    async def put_data(self, sample: RolloutSample) -> bool:
        """Return a sample and take what is complete."""
        kept = await self._coordinator.put_data(sample)
        self._coordinator.take_groups()
        return kept


# --- memory -----------------------------------------------------------------------------------


def idle_episode_kb() -> float:
    """Return the memory of an episode in mid-command, without its tokens and messages, in KB."""
    return asyncio.run(_idle_kb())


async def _idle_kb() -> float:
    with tempfile.TemporaryDirectory() as folder:
        runner = AsyncioRunner()
        events = JsonlEvents(Path(folder) / "events.jsonl", runner)
        engine, never = InstantEngine(), asyncio.Event()
        agents = ActionLevelMiniSWEAgentBuilder({"name": "action_level_minisweagent"})
        world = _World(
            agents, InstantEnvs(never), engine, runner=runner, events=events, live=2 * IDLE
        )
        tracemalloc.start()
        task = asyncio.ensure_future(world.executor.run())
        await _settled(world, IDLE // 4)  # caches are warm, code is compiled
        before = _traced()
        await _settled(world, IDLE)
        used = _traced() - before
        tracemalloc.stop()
        content = sum(_content_bytes(s.sample) for s in world.flow._episodes.values())  # noqa: SLF001  # what is live
        task.cancel()
        await asyncio.wait([task])
        await world.flow.close()
        events.close()
        runner.close()
    share = content / (IDLE + IDLE // 4)
    return (used / IDLE - share) / 1024


async def _settled(world: _World, more: int) -> None:
    target = world.flow.gauges()["acting"] + more
    task = {"instance_id": "t", "problem_statement": "p" * 200, "turns": TURNS}
    for i in range(more):
        uid = f"m{target}-{i}"
        world.coordinator.add([RolloutSample(episode=EpisodeId(uid=uid), task=task)])
    while world.flow.gauges()["acting"] < target:  # noqa: ASYNC110  # it is another thread's
        await asyncio.sleep(0.01)


def _traced() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def _content_bytes(sample: Any) -> int:
    record = sample.record
    text = sum(len(str(m["content"])) for m in sample.messages)
    return int(record._ids.nbytes + record._logprobs.nbytes + text)  # noqa: SLF001  # its capacity


# --- output -----------------------------------------------------------------------------------


def profile(turns: int) -> None:
    """Print what functions of the flow take by themselves, in one round under cProfile."""
    few = LIVE[0]
    profiler = cProfile.Profile()
    profiler.runcall(_cpu_per_action, _flow(few, EPISODES[few], turns))
    pstats.Stats(profiler).strip_dirs().sort_stats("tottime").print_stats(_PROFILE_LINES)


if __name__ == "__main__":
    main()
