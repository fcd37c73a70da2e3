"""Weight updates: their order, what goes on beside them, and that everything resumes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from world import World, turns

from agentflow.errors import EngineAdminFailed
from agentflow.types import SyncMode
from executors.weight_sync import WeightSync


@dataclass
class Parts:
    """A worker and an engine that write down what is asked of them, and fail as told."""

    said: list[str] = field(default_factory=list)
    failing: dict[str, BaseException] = field(default_factory=dict)
    hang: str = ""
    hung: asyncio.Event = field(default_factory=asyncio.Event)

    async def say(self, word: str) -> None:
        """Write it down, then fail or hang if told to."""
        self.said.append(word)
        if word == self.hang:
            self.hung.set()
            await asyncio.get_running_loop().create_future()
        if word in self.failing:
            raise self.failing[word]

    def pause_dispatch(self) -> None:
        """Worker."""
        self.said.append("pause dispatch")

    def resume_dispatch(self) -> None:
        """Worker."""
        self.said.append("resume dispatch")

    async def pause_generations(self, mode: SyncMode) -> None:
        """Worker."""
        await self.say(f"pause generations {mode}")

    async def resume_generations(self) -> None:
        """Worker."""
        await self.say("resume generations")

    async def pause(self, mode: SyncMode) -> None:
        """Engine."""
        await self.say(f"pause engine {mode}")

    async def resume(self) -> None:
        """Engine."""
        await self.say("resume engine")

    async def flush(self) -> None:
        """Engine."""
        await self.say("flush")

    async def update(self) -> None:
        """Trainer."""
        await self.say("update")


DOWN = ["pause dispatch", "pause generations abort", "pause engine abort", "update"]
UP = ["resume engine", "resume generations", "resume dispatch"]


def sync_of(parts: Parts) -> WeightSync:
    """Wire one worker and one engine."""
    return WeightSync([parts], [parts], runner=World(tasks=0).runner)


async def test_steps_go_down_in_order_and_back_up() -> None:
    """Executors first, engines last; then the other way round."""
    parts = Parts()
    report = await sync_of(parts).run(SyncMode.ABORT, parts.update)
    assert parts.said == DOWN + UP
    assert report.mode is SyncMode.ABORT
    assert 0 <= report.pause_s <= report.total_s


@pytest.mark.parametrize("step", range(1, 4))
async def test_whichever_step_fails_everything_paused_is_resumed(step: int) -> None:
    """The failure is raised, and what had been asked to pause has been asked to resume."""
    parts = Parts(failing={DOWN[step]: EngineAdminFailed("no")})
    with pytest.raises(EngineAdminFailed, match="no"):
        await sync_of(parts).run(SyncMode.ABORT, parts.update)
    paused = 3 if step >= 2 else step + 1
    assert parts.said == DOWN[: step + 1] + UP[3 - paused :]


async def test_a_failing_resume_is_raised_and_the_others_go_on() -> None:
    """An engine that does not resume holds nobody else up, and is not silent."""
    parts = Parts(failing={"resume engine": EngineAdminFailed("stuck")})
    with pytest.raises(EngineAdminFailed, match="stuck"):
        await sync_of(parts).run(SyncMode.ABORT, parts.update)
    assert parts.said == DOWN + UP


async def test_a_failing_resume_after_a_failed_update_is_its_note() -> None:
    """The first failure is the one to raise; the second one is not lost."""
    parts = Parts(
        failing={"update": ValueError("bad"), "resume engine": EngineAdminFailed("stuck")}
    )
    with pytest.raises(ValueError, match="bad") as raised:
        await sync_of(parts).run(SyncMode.ABORT, parts.update)
    assert raised.value.__notes__ == ["and resuming failed: EngineAdminFailed: stuck"]
    assert parts.said == DOWN + UP


@pytest.mark.parametrize("where", DOWN[1:])
async def test_a_cancelled_sync_resumes_everything(where: str) -> None:
    """A trainer that gives up in any step leaves nothing paused."""
    parts = Parts(hang=where)
    task = asyncio.ensure_future(sync_of(parts).run(SyncMode.ABORT, parts.update))
    async with asyncio.timeout(5):
        await parts.hung.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert parts.said[-1] == "resume dispatch"
    assert "resume generations" in parts.said


async def test_one_update_at_a_time() -> None:
    """A second update waits for the first to resume."""
    parts = Parts()
    sync = sync_of(parts)
    await asyncio.gather(
        sync.run(SyncMode.ABORT, parts.update), sync.run(SyncMode.ABORT, parts.update)
    )
    assert parts.said == (DOWN + UP) * 2


async def test_a_sync_does_not_wait_for_a_slow_judge() -> None:
    """Rewards run on beside the update; the sync waits for generations alone."""
    world = World(seed=0, tasks=1, n=2)
    world.runtimes.judge.clear()
    run = asyncio.ensure_future(world.worker.run_here())
    async with asyncio.timeout(20):
        while world.worker.gauges()["rewarding"] < 2:
            await turns(1)
        for mode in SyncMode:
            await world.sync().run(mode, world.new_weights)
        assert world.worker.gauges()["rewarding"] == 2
        world.runtimes.judge.set()
        await run
    await world.close()
    world.check_closed()


async def test_a_sync_does_not_wait_for_the_environments_of_whom_it_interrupts() -> None:
    """They are let go, or removed as here, beside the update, however long that takes."""
    world = World(seed=0, tasks=2, n=2, partial_rollout=False)
    run = asyncio.ensure_future(world.worker.run_here())
    async with asyncio.timeout(20):
        while not world.engine.gauges()["running"]:
            await turns(1)
        world.envs.hold = asyncio.Event()
        try:
            await world.sync().run(SyncMode.ABORT, world.new_weights)
            assert world.worker.gauges()["finalizing"] > world.worker.gauges()["interrupted"] == 0
        finally:
            world.envs.hold.set()
        await run
    await world.close()
    world.check_closed()
    assert any(sample.attempt for sample in world.ended)


async def test_commands_and_starts_go_on_while_generations_are_paused() -> None:
    """During an update environments start and commands end; no generation begins."""
    world = World(seed=0)
    run = asyncio.ensure_future(world.worker.run_here())
    async with asyncio.timeout(20):
        while not world.worker.gauges()["acting"]:
            await turns(1)

        before = len(world.events.kinds())

        async def update() -> None:
            paused = len(world.events.kinds())
            await turns(100)
            assert "generation_started" not in world.events.kinds()[paused:]
            assert {"env_started", "command_ended"} <= set(world.events.kinds()[before:])
            assert not world.engine.gauges()["running"]

        await world.sync().run(SyncMode.ABORT, update)
        await run
    await world.close()
    world.check_closed()


async def test_a_new_version_alone_aborts_nothing() -> None:
    """Publishing weights without a pause leaves every generation in flight as it is."""
    world = World(seed=0)
    run = asyncio.ensure_future(world.worker.run_here())
    async with asyncio.timeout(20):
        while not run.done():
            world.engine.weight_version += 1
            await turns(3)
    await world.close()
    world.check_closed()
    assert not any(sample.attempt for sample in world.ended)
    assert not {"env_detached", "preempted"} & set(world.events.kinds())


@pytest.mark.parametrize("mode", [SyncMode.IN_PLACE, SyncMode.RETRACT, SyncMode.DRAIN])
async def test_modes_that_abort_nothing_interrupt_no_episode(mode: SyncMode) -> None:
    """Generations stand still or end by themselves; versions change inside a sample's tokens."""
    world = World(seed=1)

    async def disturb() -> None:
        while True:
            await turns(10)
            await world.sync().run(mode, world.new_weights)

    await world.run(disturb)
    await world.close()
    world.check_closed()
    assert not any(sample.attempt for sample in world.ended)
    assert max(len(set(s.weight_versions.tolist())) for s in world.ended) > 2


async def test_a_preemption_and_a_sync_that_hit_one_generation_are_told_apart() -> None:
    """The sync outranks: the episode is saved and resumes with a new attempt, not preempted."""
    from agentflow.scheduling import AbortReason, ActionScheduler, Event, Limits  # noqa: PLC0415
    from agentflow.types import EpisodeId  # noqa: PLC0415
    from priority.policies import FcfsPreempt  # noqa: PLC0415

    limits = Limits(generations=1, live=4, admitted=4, starts=4, commands=4, rewards=4)
    core = ActionScheduler(limits, FcfsPreempt(window=1))
    high, low = (core.submit(EpisodeId(uid=uid), 0.0) for uid in ("high", "low"))
    core.interact(0.0)
    core.advance(high, Event.STARTED, 0.0)
    core.generate(0.0)
    core.advance(high, Event.NEEDS_ENV_STEP, 0.0)
    core.interact(0.0)
    core.advance(low, Event.STARTED, 0.0)
    core.generate(0.0)
    core.advance(high, Event.NEEDS_GENERATION, 1.0)
    assert core.preempt(1.0) == [low]
    assert low.aborting is AbortReason.PREEMPTION
    assert core.interrupt_all() == []
    assert low.aborting is AbortReason.WEIGHT_SYNC
    core.check()
