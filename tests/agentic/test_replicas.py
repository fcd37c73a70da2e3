"""An engine of several replicas: a worker on a thread of its own for each, over one coordinator."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from holding import Holding, rows, uids
from test_run import TASKS, config_of
from world import ARRAYS, END, Chars, World

from agentflow.config import RolloutConfig
from agentflow.engine.fake_sglang import FakeModel, FakeOptions, FakeSglang
from agentflow.engine.rids import RidFactory, episode_key
from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.engine.turns import EngineAccess
from agentflow.errors import ConfigError
from agentflow.observe.records import EventFile
from agentflow.observe.run_state import RunState
from agentflow.runner import AsyncioRunner
from agentflow.swe import action_level_agentflow
from agentflow.types import SamplingParams, SyncMode
from executors.data.coordinator import WorkerGivenUp
from executors.runs.session import Rollout
from executors.scheduling import shares

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.protocols import AgentFlow, Runner
    from agentflow.swe.scheduling_hooks import Scheduling
    from agentflow.types import RolloutSample
    from executors.backend import RolloutBackend
    from executors.data.groups import Group

MODEL = FakeModel(vocab_size=128, eos_id=END)


class Fleet(Holding):
    """A backend over fake SGLang servers."""

    def __init__(self, servers: Sequence[FakeSglang], **sections: Mapping[str, Any]) -> None:
        self.servers = servers
        super().__init__(**sections)

    def _make_engine(self, config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> Any:
        urls = tuple(server.url for server in self.servers)
        engine = SglangEngine(SglangConfig(urls=urls, vocab_size=0x110000))
        return EngineAccess(
            engine=engine,
            renderer=Chars(),
            rids=RidFactory(),
            sampling=SamplingParams(max_new_tokens=60),
        )

    def homes(self) -> list[set[str]]:
        """Give the episodes that each server has seen."""
        return [{episode_key(b["rid"]) or "" for b in s.bodies} for s in self.servers]


async def start(stack: AsyncExitStack, count: int, **options: Any) -> list[FakeSglang]:
    """Start servers of one model."""
    options = {"model": MODEL, **options}
    return [
        await stack.enter_async_context(FakeSglang(FakeOptions(**options))) for _ in range(count)
    ]


def arrays(groups: Sequence[Group]) -> dict[str, dict[str, list[float]]]:
    """Give every sample's arrays by its name."""

    def of(sample: RolloutSample) -> dict[str, list[float]]:
        return {name: list(getattr(sample, name)) for name in ARRAYS}

    return {str(sample.episode): of(sample) for group in groups for sample in group}


def check_closed(fleet: Fleet, backend: RolloutBackend) -> None:
    """No environment is left, and every token is in a column."""
    assert not fleet.envs.live
    figures = {k: v for k, v in backend.metrics().items() if k.startswith("tokens/")}
    received = figures.pop("tokens/received")
    assert received == sum(figures.values()) > 0


def begun_by(backend: RolloutBackend) -> list[float]:
    """Give the episodes that each of two workers has under way."""
    metrics = backend.metrics()
    return [metrics[f"replica-{index}/running"] for index in range(2)]


PROMPTS = rows(*"abcdefgh", turns=4)


@pytest.mark.parametrize("action_level", [True, False])
async def test_each_replica_has_its_worker_and_samples_are_those_of_one(
    *, action_level: bool
) -> None:
    """An episode stays where its KV is; limits are shared out, and nobody's samples change."""
    section = {
        "enable_action_level_scheduling": action_level,
        "max_concurrency": 5,
        "gen_concurrency": 3 if action_level else None,
    }
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        alone = Fleet(await start(stack, 1), rollout=section)
        async with alone.backend as backend:
            expected = arrays(await backend.step(PROMPTS, n=2))
        both = Fleet(await start(stack, 2), rollout=section)
        async with both.backend as backend:
            groups = await backend.step(PROMPTS, n=2)
            gauges = backend.metrics()
        assert arrays(groups) == expected
        check_closed(both, backend)
    homes = both.homes()
    assert all(homes)
    assert not homes[0] & homes[1]
    workers = {name.partition("/")[0] for name in gauges}
    assert {"replica-0", "replica-1"} <= workers
    assert "local" not in workers
    assert both.envs.live_at_close == [0]  # one builder for both, closed last


@pytest.mark.parametrize("action_level", [True, False])
async def test_a_small_step_fills_all_replicas_alike(*, action_level: bool) -> None:
    """Though one worker has slots for all of it."""
    section = {"enable_action_level_scheduling": action_level, "max_concurrency": 32}
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        fleet = Fleet(await start(stack, 2), rollout=section)
        async with fleet.backend as backend:
            on_flow_worker = backend._runner.on_flow_worker
            fleet.envs.hold = await on_flow_worker(_event())
            stepping = asyncio.create_task(backend.step(PROMPTS[:4], n=2))
            while sum(begun := begun_by(backend)) < 8:  # noqa: ASYNC110  # it does not tell
                await asyncio.sleep(0)
            assert begun == [4, 4]
            await on_flow_worker(_set(fleet.envs.hold))
            assert len(await stepping) == 4


async def test_weights_are_updated_on_all_replicas_and_nothing_is_lost() -> None:
    """Every mode pauses every worker and every server, and each goes on."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        fleet = Fleet(await start(stack, 2), rollout={"max_concurrency": 6, "gen_concurrency": 4})
        async with fleet.backend as backend:
            uids_issued = backend.submit(rows(*"abcdefgh", turns=8), n=2)
            backend.finish()
            for version, mode in enumerate([*SyncMode, *SyncMode], start=1):
                await backend.pause(mode)
                backend.weights_updated(version)
                await backend.resume()
            groups = [group async for group in backend.groups()]
            assert sorted(uids(groups)) == sorted(uids_issued)
            assert not any(sample.remove_sample for group in groups for sample in group)
        check_closed(fleet, backend)
    for server in fleet.servers:
        assert server.calls.count("/continue_generation") == 2 * len(SyncMode)
        assert server.scheduler.pause_mode is None


async def test_where_a_replica_dies_its_worker_goes_on_with_the_others() -> None:
    """What ran there is tried again, what comes later runs elsewhere; groups are complete."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        servers = await start(stack, 2)
        fleet = Fleet(servers, rollout={"max_concurrency": 6, "gen_concurrency": 4})
        async with fleet.backend as backend:
            stepping = asyncio.create_task(backend.step(rows(*"abcdefgh", turns=6), n=2))
            while len(servers[1].bodies) < 5:  # noqa: ASYNC110  # the server does not tell
                await asyncio.sleep(0)
            await servers[1].die()
            seen = len(servers[1].bodies)
            groups = await stepping
            assert backend.metrics()["replica-1/ended"] > 0
        assert len(groups) == 8
        assert not any(sample.remove_sample for group in groups for sample in group)
        assert len(servers[1].bodies) == seen
        check_closed(fleet, backend)
        homes = fleet.homes()
        assert homes[0] & homes[1]  # episodes that went on elsewhere


async def test_a_lost_worker_costs_nothing_but_time() -> None:
    """What it had comes to the worker of the other replica, clean."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        servers = await start(stack, 2)
        fleet = Fleet(servers, rollout={"max_concurrency": 6, "gen_concurrency": 4})
        async with fleet.backend as backend:
            stepping = asyncio.create_task(backend.step(PROMPTS, n=2))
            while len(servers[1].bodies) < 12:  # noqa: ASYNC110  # some have tokens by then
                await asyncio.sleep(0)
            (lost,) = (t for t in asyncio.all_tasks() if t.get_name() == "worker replica-1")
            lost.cancel()
            groups = await stepping
            assert len(groups) == 8
            assert not any(sample.remove_sample for group in groups for sample in group)
            metrics = backend.metrics()
            assert metrics["tokens/restarted"] + metrics["tokens/lost"] > 0
        check_closed(fleet, backend)
        homes = fleet.homes()
        assert homes[0] & homes[1]


async def test_a_worker_whose_thread_stands_still_loses_its_lease() -> None:
    """The others renew theirs, and get what it had; what it still brings comes too late."""
    runner, now = AsyncioRunner(), [0.0]
    world = World(tasks=6)
    world.runner = runner  # type: ignore[assignment]
    coordinator = world.coordinator
    coordinator.lease_s = 0.2
    coordinator._runner = _At(now)  # type: ignore[assignment]
    silent, lively = world.make_worker("silent"), world.make_worker("lively")
    stands, goes_on = threading.Event(), threading.Event()

    async def stand_still() -> None:
        stands.set()
        goes_on.wait(60)

    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        world.envs.hold = await runner.on_flow_worker(_event())
        runs = [tasks.create_task(_given_up(w.run())) for w in (silent, lively)]
        under_way = coordinator._books.ledger.under_way
        while not (under_way("silent") and under_way("lively")):  # noqa: ASYNC110
            await asyncio.sleep(0)  # the books do not tell
        tasks.create_task(runner.on_worker("silent", stand_still()))
        await runner.to_thread(stands.wait)
        now[0] = 10.0
        while coordinator._heard["lively"] < now[0]:  # noqa: ASYNC110  # it renews in a moment
            await asyncio.sleep(0)
        lost = coordinator.expire()
        assert lost
        await runner.on_flow_worker(_set(world.envs.hold))
        assert await runs[1] is False
        goes_on.set()
        assert await runs[0] is True
    for worker in (silent, lively):
        await worker.close()
    world.coordinator.check()
    assert len(world.by_episode()) == 18
    assert not world.envs.live
    runner.close()


async def _event() -> asyncio.Event:
    return asyncio.Event()


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _given_up(run: Coroutine[Any, Any, None]) -> bool:
    """Whether the run ends because its worker was given up."""
    given_up = False
    try:
        await run
    except* WorkerGivenUp:
        given_up = True
    return given_up


class _At:
    """Tells the time that a test sets."""

    def __init__(self, now: list[float]) -> None:
        self.now = lambda: now[0]


def test_limits_are_shared_out_and_nothing_gets_none() -> None:
    """The sum is the run's, where there is enough for everybody."""
    config = RolloutConfig(max_concurrency=7, gen_concurrency=4, reward_concurrency=2)
    parts = shares(config, 3)
    assert [p.max_concurrency for p in parts] == [3, 2, 2]
    assert [p.gen_concurrency for p in parts] == [2, 1, 1]
    assert [p.start_concurrency for p in parts] == [3, 3, 2]
    assert [p.reward_concurrency for p in parts] == [1, 1, 1]
    assert [p.env_concurrency for p in parts] == [None] * 3
    for name in ("max_concurrency", "gen_concurrency"):
        with pytest.raises(ConfigError, match=f"rollout.{name}: 2 is less than the 3 replicas"):
            shares(config.model_copy(update={name: 2}), 3)


async def test_too_little_for_all_replicas_is_told_before_anything_is_written(
    tmp_path: Path,
) -> None:
    """The key, its value and what would be right."""
    async with AsyncExitStack() as stack:
        out = tmp_path / "run"
        rollout = {"max_concurrency": 1}
        fleet = Fleet(await start(stack, 2), rollout=rollout, run={"out": str(out)})
        with pytest.raises(ConfigError, match=r"rollout\.max_concurrency: 1 is less than the 2"):
            await fleet.backend.start()
        assert not out.exists()


flows_made = [0]


def one_alone(config: Mapping[str, Any], model: EngineAccess, **parts: Any) -> AgentFlow:
    """Make a flow for the first replica alone."""
    flows_made[0] += 1
    if flows_made[0] > 1:
        raise ValueError("there is no second one")
    return action_level_agentflow(config, model, **parts)


def with_its_own(
    config: Mapping[str, Any], model: EngineAccess, *, scheduling: Scheduling, runner: Runner
) -> AgentFlow:
    """Make a flow that takes nobody's environments."""
    return action_level_agentflow(config, model, scheduling=scheduling, runner=runner)


async def test_a_flow_that_cannot_be_made_for_every_replica_leaves_nothing() -> None:
    """Those that were made are closed."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(await start(stack, 2), flow={"name": f"{__file__}:one_alone"})
        with pytest.raises(ConfigError, match="there is no second one"):
            await fleet.backend.start()
    assert fleet.envs.live_at_close == [0]


async def test_a_flow_of_the_users_need_not_share_environments() -> None:
    """Each has its own builder then, and closes it."""
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        fleet = Fleet(await start(stack, 2), flow={"name": f"{__file__}:with_its_own"})
        async with fleet.backend as backend:
            assert len(await backend.step(PROMPTS[:2], n=2)) == 2
        check_closed(fleet, backend)


async def test_what_a_run_of_several_replicas_shows(tmp_path: Path) -> None:
    """Slots by replica, and the limits of each beside their sum."""
    out = tmp_path / "run"
    async with asyncio.timeout(60), AsyncExitStack() as stack:
        servers = await start(stack, 2, model=FakeModel(vocab_size=6144))
        config = config_of(
            out,
            ",".join(server.url for server in servers),
            enable_action_level_scheduling=True,
            max_concurrency=6,
            gen_concurrency=3,
        )
        engine = config.engine.model_copy(update={"vocab_size": 6144})
        sampling = config.sampling.model_copy(update={"max_new_tokens": 30})
        config = config.model_copy(update={"engine": engine, "sampling": sampling})
        summary = await Rollout(config, load_tasks=lambda _: TASKS).run()
    assert summary.samples.delivered == 8
    assert summary.tokens.unaccounted == 0
    lines = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    (started,) = (line for line in lines if line["kind"] == "run_started")
    share = {name: limits["generations"] for name, limits in started["workers"].items()}
    assert started["generations"] == 3
    assert share == {"replica-0": 2, "replica-1": 1}
    where: dict[str, str] = {}
    busy: Counter[str] = Counter()
    most: Counter[str] = Counter()
    for line in lines:
        episode = f"{line.get('uid')}#{line.get('replica_index')}"
        if line["kind"] == "leased":
            where[episode] = line["worker"]
        if line["kind"] in {"generation_started", "generation_ended"}:
            busy[where[episode]] += 1 if line["kind"] == "generation_started" else -1
            most[where[episode]] = max(most[where[episode]], busy[where[episode]])
    assert most.keys() == share.keys()
    assert all(most[name] <= limit for name, limit in share.items())
    state = RunState()
    state.fold(EventFile(out / "events.jsonl").new())
    assert {name: slots.total for name, slots in state.books.replicas.items()} == share
