"""Both executors over one world: equal samples, exact tokens whatever interrupts, closed books."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import pytest
from world import ByChance, World, assert_same_tokens, turns

from agentflow.types import Cause, SyncMode
from executors.agentic import RolloutStalled

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any


async def undisturbed(seed: int, *, action_level: bool = True, **more: Any) -> World:
    """Run a world in peace."""
    world = World(seed=seed, **more)
    if not action_level:
        world.worker = world.make_worker("naive", action_level=False)
    await world.run()
    await world.close()
    world.check_closed()
    return world


def disturbances(
    world: World, chance: random.Random, modes: list[SyncMode], *, within: int = 40
) -> Callable[[], Coroutine[Any, Any, None]]:
    """Sync weights again and again, at random moments `within` turns, in random modes."""

    async def disturb() -> None:
        sync = world.sync()
        mode = SyncMode.ABORT
        while True:
            await turns(chance.randint(1, within))
            while not world.engine.gauges()["running"]:
                await turns(1)
            await sync.run(mode, world.new_weights)
            mode = chance.choice(modes)

    return disturb


def stays_within_limits(world: World) -> None:
    """Starts 2, commands 3, rewards 2; 4 live episodes and a quarter more that start ahead."""
    assert world.envs.most_starting <= 2 + 2  # and a judge's each
    assert world.envs.most_commands <= 3
    assert world.envs.most_live <= 5 + 2  # and a judge's each


@pytest.mark.parametrize("seed", range(3))
async def test_both_executors_give_equal_samples_for_equal_seeds(seed: int) -> None:
    """With an undisturbed engine, scheduling by action changes nothing that a trainer sees."""
    agentic = await undisturbed(seed)
    naive = await undisturbed(seed, action_level=False)
    assert_same_tokens(agentic, naive)
    stays_within_limits(agentic)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("action_level", [True, False])
async def test_syncs_and_preemptions_at_random_lose_and_change_nothing(
    seed: int, *, action_level: bool
) -> None:
    """Every sample ends once with the tokens of an undisturbed run; both ledgers close."""
    world = World(seed=seed, policy=ByChance(random.Random(seed)))
    if not action_level:
        world.worker = world.make_worker("naive", action_level=False)
    await world.run(disturbances(world, random.Random(seed), sorted(SyncMode)))
    await world.close()
    world.check_closed()
    assert_same_tokens(world, await undisturbed(0))
    if action_level:
        stays_within_limits(world)
    assert world.engine.weight_version > 1
    assert any(sample.attempt for sample in world.ended)


async def test_preemptions_at_random_lose_and_change_nothing() -> None:
    """Whoever is preempted goes on from its tokens; nobody is preempted more often than allowed."""
    world = World(seed=7, tasks=6, policy=ByChance(random.Random(7)), max_preemptions=1)
    await world.run()
    await world.close()
    world.check_closed()
    assert_same_tokens(world, await undisturbed(0, tasks=6))
    preempted = [episode for kind, episode, _ in world.events.events if kind == "preempted"]
    assert preempted
    assert len(set(preempted)) == len(preempted)


async def test_without_partial_rollout_an_interrupted_episode_starts_anew() -> None:
    """No token of before the interruption stays in the sample, and all are counted."""
    world = World(seed=3, partial_rollout=False, max_attempts=1000)
    await world.run(disturbances(world, random.Random(3), [SyncMode.ABORT], within=200))
    await world.close()
    world.check_closed()
    assert_same_tokens(world, await undisturbed(3))
    again = [sample for sample in world.ended if sample.attempt]
    assert sum(sample.restarted_tokens for sample in again) > 0
    assert world.events.kinds().count("restarted_clean") == sum(s.attempt for s in world.ended)
    assert "resumed" not in world.events.kinds()


async def test_the_environment_outlives_an_interruption() -> None:
    """Resumed episodes go on where their files are: no environment is started twice."""
    world = World(seed=1)
    await world.run(disturbances(world, random.Random(1), [SyncMode.ABORT]))
    await world.close()
    world.check_closed()
    kinds = world.events.kinds()
    assert kinds.count("env_detached") == kinds.count("resumed") > 0
    assert kinds.count("env_starting") == len(world.ended)


async def test_an_episode_that_is_always_interrupted_ends_as_a_fallback() -> None:
    """After its budget of attempts it is masked, with cause and identity, and nothing is left."""
    world = World(seed=0, tasks=1, n=2, lengths={"t0": 40}, max_attempts=3)

    async def disturb() -> None:
        sync = world.sync()
        while True:
            await turns(25)
            await sync.run(SyncMode.ABORT, world.new_weights)

    await world.run(disturb)
    await world.close()
    world.check_closed()
    fallbacks = [sample for sample in world.ended if sample.remove_sample]
    assert fallbacks
    for sample in fallbacks:
        assert sample.ending is not None
        assert sample.ending.cause is Cause.WEIGHT_SYNC
        assert sample.ending.message == "was interrupted 3 times"
        assert (len(sample.prompts), len(sample.responses), sample.response_mask.sum()) == (1, 1, 0)
        assert sample.partial_agent_data is None


async def test_a_failed_start_reaches_its_sample_with_its_cause() -> None:
    """The others of the group are whole; the failed one is masked and says why."""
    world = World(seed=0, tasks=2, n=2)
    broken = next(iter(world.coordinator._books.samples))
    world.envs.broken.add(broken.key)
    await world.run()
    await world.close()
    world.check_closed()
    sample = world.by_episode()[broken]
    assert sample.ending is not None
    assert (sample.ending.cause, sample.ending.phase) == (Cause.ENV_START_FAILED, "start")
    assert broken.key in sample.ending.message
    assert sample.remove_sample
    assert sum(s.remove_sample for s in world.ended) == 1


async def test_a_dead_environment_ends_its_episode() -> None:
    """No turn is generated for it any more; the cause is the infrastructure's; others go on."""
    world = World(seed=0, tasks=2, n=2)
    dead = next(iter(world.coordinator._books.samples))
    world.envs.dying = {f"{dead.key}-{number}" for number in range(1, 99)}
    await world.run()
    await world.close()
    world.check_closed()
    sample = world.by_episode()[dead]
    assert sample.ending is not None
    assert (sample.ending.cause, sample.facts.turns) == (Cause.ENV_DIED, 1)
    assert sample.remove_sample
    assert sample.facts.generated_tokens > 0
    assert sum(s.remove_sample for s in world.ended) == 1


async def test_an_over_long_prompt_ends_at_once_and_holds_nobody_up() -> None:
    """It fails the same way each time: it is not tried again, and its group completes."""
    world = World(seed=0, tasks=3, n=2, context_length=2000)
    for sample in world.coordinator._books.samples.values():
        if sample.episode.uid == "t1":
            sample.task = {**sample.task, "problem_statement": "x" * 2000}
    await world.run()
    await world.close()
    world.check_closed()
    for sample in world.ended:
        assert sample.ending is not None
        too_long = sample.episode.uid == "t1"
        assert (sample.ending.cause is Cause.CONTEXT_FULL) == too_long
        assert (sample.attempt, sample.remove_sample) == (0, too_long)  # it has nothing to train on
    assert len(world.ended) == 6


async def test_interrupted_samples_go_before_new_ones() -> None:
    """What a sync interrupted is what the executor takes first afterwards."""
    world = World(seed=2, tasks=8, n=1, max_concurrency=2, gen_concurrency=2, async_factor=1.0)
    order: list[str] = []
    put_partial, get_sample = world.coordinator.put_partial, world.coordinator.get_sample

    async def noted_put(sample: Any, worker: str) -> bool:
        order.append(f"partial {sample.episode.uid}")
        return await put_partial(sample, worker)

    async def noted_get(worker: str) -> Any:
        sample = await get_sample(worker)
        order.append(f"got {sample.episode.uid}" if sample else "none")
        return sample

    world.coordinator.put_partial = noted_put  # type: ignore[method-assign]
    world.coordinator.get_sample = noted_get  # type: ignore[method-assign]

    async def disturb() -> None:
        while world.engine.gauges()["running"] < 2:
            await turns(1)
        await world.sync().run(SyncMode.ABORT, world.new_weights)
        await asyncio.Event().wait()

    await world.run(disturb)
    await world.close()
    interrupted = [line.split()[1] for line in order if line.startswith("partial")]
    assert interrupted
    after = order[max(i for i, line in enumerate(order) if line.startswith("partial")) + 1 :]
    assert after[: len(interrupted)] == [f"got {uid}" for uid in interrupted]


async def test_a_cancelled_executor_gives_every_lease_back() -> None:
    """Whatever ends the worker, its episodes are queued again and its environments are gone."""
    world = World(seed=0)
    task = asyncio.ensure_future(world.worker.run_here())
    await turns(80)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await world.close()
    world.coordinator.check()
    counts = world.coordinator.counts()
    assert (counts.leased, counts.partial) == (0, 0)
    assert counts.queued + counts.buffered == counts.issued == 12
    assert counts.queued
    assert not world.envs.live


async def test_stop_lets_what_runs_end_and_the_rest_queue() -> None:
    """After a stop nothing new begins and nothing is leased any more."""
    world = World(seed=0)
    task = asyncio.ensure_future(world.worker.run_here())
    await turns(60)
    world.worker.stop()
    await task
    await world.close()
    counts = world.coordinator.counts()
    assert counts.leased == 0
    assert 0 < counts.buffered < counts.issued
    assert not world.envs.live


async def test_a_second_worker_finishes_what_a_lost_one_had() -> None:
    """Its partial episodes restart clean elsewhere, its leases afresh; each ends once."""
    world = World(seed=5)
    first = asyncio.ensure_future(world.worker.run_here())
    await turns(60)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await world.close()
    world.engine._closed = False
    world.worker = world.make_worker("second")
    await world.run()
    await world.close()
    world.coordinator.check()
    assert len(world.by_episode()) == 12
    assert_same_tokens(world, await undisturbed(5))
    assert not world.envs.live


async def test_tokens_of_generations_that_died_with_their_worker_are_accounted_for() -> None:
    """It was cut short in mid-generation: what it had received is `restarted`, to the token."""
    world = World(seed=5)
    first = asyncio.ensure_future(world.worker.run_here())
    while not (world.engine.gauges()["running"] and sum(world.meter.received.values()) > 40):
        await turns(1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await world.flow.close()
    had, whole = world.books.figures(), sum(s.facts.generated_tokens for s in world.ended)
    world.worker = world.make_worker("second")
    await world.run()
    await world.close()
    tokens = world.check_books()
    assert had["received"] > whole
    assert (tokens["restarted"], tokens["lost"]) == (had["received"] - whole, 0)


@pytest.mark.parametrize("action_level", [True, False])
async def test_tokens_of_a_worker_that_was_given_up_and_lives_on_are_lost_ones(
    *, action_level: bool
) -> None:
    """Nobody hears of what it generates any more, except where it comes first after all."""
    world = World(seed=5)
    silent = world.make_worker("silent", action_level=action_level)
    flow = world.flow
    first = asyncio.ensure_future(silent.run_here())
    while sum(world.meter.received.values()) < 40:
        await turns(1)
    world.coordinator.release_worker("silent")
    world.worker = world.make_worker("second")
    async with asyncio.timeout(60):
        await asyncio.gather(first, world.worker.run_here(), return_exceptions=True)
    await flow.close()
    await world.close()
    world.check_closed()
    assert world.coordinator.counts().late > 0
    assert world.check_books()["lost"] > 0
    assert_same_tokens(world, await undisturbed(5))


async def test_a_stall_is_noticed_named_and_raised() -> None:
    """When nothing moves for too long the run fails with the places of its episodes."""
    world = World(seed=0, tasks=1, n=2, status_s=0.01, stall_s=0.03)
    world.envs.hold = asyncio.Event()
    with pytest.raises(ExceptionGroup) as raised:
        await world.worker.run_here()
    assert raised.group_contains(RolloutStalled, match=r"t0#0 starting, t0#1 starting")
    world.envs.hold.set()
    await world.close()
    assert not world.envs.live


async def test_gauges_tell_the_stages(caplog: pytest.LogCaptureFixture) -> None:
    """The status line and the gauges name window, stages and what came back."""
    world = World(seed=0, status_s=0.001)
    with caplog.at_level("INFO", logger="executors.agentic"):
        world.envs.hold = asyncio.Event()
        task = asyncio.ensure_future(world.worker.run_here())
        await asyncio.wait([task], timeout=0.05)
        gauges = world.worker.gauges()
        world.envs.hold.set()
        await task
    assert (gauges["running"], gauges["window"], gauges["starting"]) == (9, 9, 2)
    assert world.worker.gauges()["ended"] == 12
    assert any("rollout: new=" in record.message for record in caplog.records)
    await world.close()
