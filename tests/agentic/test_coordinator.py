"""DataCoordinator: queues, groups, leases, predictions and snapshots, from one and more threads."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest

from agentflow.runner import AsyncioRunner
from agentflow.types import Cause, EpisodeId, RolloutSample
from executors.data.coordinator import DataCoordinator, WorkerGivenUp
from executors.data.ledger import NotLeased
from executors.source import WorkerSource

if TYPE_CHECKING:
    from collections.abc import Iterator


def sample(uid: str = "a", index: int = 0) -> RolloutSample:
    """Make a trainer's sample."""
    episode = EpisodeId(uid=uid, replica_index=index)
    return RolloutSample(episode=episode, task={"instance_id": uid}, metadata={"step": 7})


class Clock(AsyncioRunner):
    """A runner whose time is set by hand."""

    t = 0.0

    def now(self) -> float:
        """The time that was set."""
        return self.t


@pytest.fixture
def clock() -> Clock:
    """Give a clock at 0."""
    return Clock()


@pytest.fixture
def coordinator(clock: Clock) -> Iterator[DataCoordinator]:
    """Give a coordinator, and see that its books balance in the end."""
    made = DataCoordinator(runner=clock, lease_s=10.0, max_attempts=3, predictor_url="http://p")
    yield made
    made.check()


async def lease(coordinator: DataCoordinator, worker: str = "local") -> RolloutSample:
    """Take a sample that must be there."""
    async with asyncio.timeout(5):
        got = await coordinator.get_sample(worker)
    assert got is not None
    return got


async def test_a_group_is_taken_when_its_last_replica_has_ended(
    coordinator: DataCoordinator,
) -> None:
    """Replicas come in order, metadata with them; until then there is no group to take."""
    coordinator.add_prompt(sample(), n=3)
    got = [await lease(coordinator) for _ in range(3)]
    for one in reversed(got[1:]):
        assert await coordinator.put_data(one)
    assert coordinator.take_groups() == []
    await coordinator.put_data(got[0])
    ((first, second, third),) = coordinator.take_groups()
    assert [s.episode.replica_index for s in (first, second, third)] == [0, 1, 2]
    assert first.metadata == {"step": 7}
    assert coordinator.counts().delivered == 3


async def test_partial_samples_go_before_new_ones_and_to_their_own_worker(
    coordinator: DataCoordinator,
) -> None:
    """Who has the environment goes on with the episode; others get new ones meanwhile."""
    coordinator.add([sample("a"), sample("b"), sample("c")])
    mine = await lease(coordinator, "w1")
    await coordinator.put_partial(mine, "w1")
    assert (await lease(coordinator, "w2")).episode.uid == "b"
    assert await lease(coordinator, "w1") is mine


async def test_new_samples_are_shared_out_among_workers(coordinator: DataCoordinator) -> None:
    """Who has less under way gets the next one, as long as it has a slot; a lost one has none."""
    coordinator.share_among("a", 2)
    coordinator.share_among("b", 4)
    for i in range(10):
        coordinator.add([sample(str(i))])
    got = await lease(coordinator, "a")
    second = asyncio.create_task(coordinator.get_sample("a"))
    await asyncio.sleep(0)
    assert not second.done()  # b is to have it, though it has not asked yet
    await lease(coordinator, "b")
    await second
    _, _, mine = [await lease(coordinator, "b") for _ in range(3)]  # a has no slot left
    assert await coordinator.put_partial(mine, "b")
    await coordinator.put_data(got, "a")
    assert await lease(coordinator, "b") is mine  # nobody else's, whose turn it may be
    third = asyncio.create_task(coordinator.get_sample("b"))
    await asyncio.sleep(0)
    assert not third.done()
    coordinator.release_worker("a")
    assert await third


async def test_what_a_worker_still_ends_counts_as_under_way(coordinator: DataCoordinator) -> None:
    """A dropped sample keeps its slot until its worker has done with it."""
    coordinator.share_among("a", 1)
    coordinator.share_among("b", 4)
    for i in range(4):
        coordinator.add([sample(str(i))])
    dropped = await lease(coordinator, "a")
    coordinator.drop(dropped.episode, Cause.SURPLUS)
    await lease(coordinator, "b")
    await lease(coordinator, "b")
    coordinator.abandon(dropped, "a")
    last = asyncio.create_task(coordinator.get_sample("b"))
    await asyncio.sleep(0)
    assert not last.done()
    await lease(coordinator, "a")
    last.cancel()


async def test_none_is_given_out_only_when_all_have_ended(coordinator: DataCoordinator) -> None:
    """A waiting worker gets what another one returns; when that has ended, nobody waits on."""
    coordinator.add([sample()])
    coordinator.finish()
    got = await lease(coordinator, "w1")
    waiting = asyncio.ensure_future(coordinator.get_sample("w2"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await coordinator.put_data(got, "w1")
    assert await waiting is None


async def test_a_lost_workers_leases_go_to_others_afresh(coordinator: DataCoordinator) -> None:
    """The second worker gets a copy that knows nothing of the first attempt; first result wins."""
    coordinator.add([sample()])
    first = await lease(coordinator, "w1")
    first.rewards = 0.5
    assert coordinator.release_worker("w1") == [first.episode]
    second = await lease(coordinator, "w2")
    assert second is not first
    assert (second.attempt, second.rewards, second.metadata) == (1, 0.0, {"step": 7})
    assert await coordinator.put_data(second, "w2")
    assert not await coordinator.put_data(first, "w1")
    assert coordinator.counts().late == 1
    (group,) = coordinator.take_groups()
    assert group == (second,)


async def test_a_timed_out_rollout_that_finishes_first_counts_and_the_other_is_late(
    coordinator: DataCoordinator,
) -> None:
    """Requeued and not yet leased, or leased again: the episode is not run or counted twice."""
    coordinator.add([sample("a"), sample("b")])
    a, b = await lease(coordinator, "w1"), await lease(coordinator, "w1")
    coordinator.release_worker("w1")
    assert await coordinator.put_data(a, "w1")
    again = await lease(coordinator, "w2")
    assert again.episode == b.episode
    assert await coordinator.put_data(b, "w1")
    assert not await coordinator.put_data(again, "w2")
    assert len(coordinator.take_groups()) == 2


async def test_a_silent_worker_is_given_up_and_may_not_come_back_under_its_name(
    coordinator: DataCoordinator, clock: Clock
) -> None:
    """Leases last as long as their worker is heard; owner-less episodes are queued again."""
    coordinator.add([sample("a"), sample("b")])
    await lease(coordinator, "quiet")
    await lease(coordinator, "loud")
    clock.t = 9.0
    coordinator.renew("loud")
    clock.t = 11.0
    assert [e.uid for e in coordinator.expire()] == ["a"]
    assert coordinator.expire() == []
    with pytest.raises(WorkerGivenUp, match="'quiet' was given up"):
        await coordinator.get_sample("quiet")
    assert (await lease(coordinator, "new")).episode.uid == "a"


async def test_an_episode_that_kills_its_workers_is_dropped_and_its_group_completes(
    coordinator: DataCoordinator,
) -> None:
    """A small budget of attempts, then a cause; nobody waits for the rest of the group for ever."""
    coordinator.add([sample("a", 0), sample("a", 1)])
    good = await lease(coordinator, "good")
    for i in range(3):
        await lease(coordinator, f"w{i}")
        coordinator.release_worker(f"w{i}")
    await coordinator.put_data(good, "good")
    assert coordinator.counts().dropped == {Cause.CANCELLED: 1}
    ((first, second),) = coordinator.take_groups()
    assert first is good
    assert second.remove_sample
    assert second.ending is not None
    assert second.ending.cause is Cause.CANCELLED
    coordinator.finish()
    assert await coordinator.get_sample("good") is None


async def test_a_return_without_a_lease_is_refused(coordinator: DataCoordinator) -> None:
    """A doubled return is an error, not a second ending."""
    coordinator.add([sample()])
    got = await lease(coordinator)
    await coordinator.put_data(got)
    with pytest.raises(NotLeased):
        await coordinator.put_data(got)


async def test_a_cancelled_wait_loses_no_sample(coordinator: DataCoordinator) -> None:
    """Cancelled in the very step in which a sample comes, a worker has not leased it."""
    waiting = asyncio.ensure_future(coordinator.get_sample("w1"))
    await asyncio.sleep(0)
    coordinator.add([sample()])
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert coordinator.counts().queued == 1
    await lease(coordinator, "w2")


async def test_what_was_not_begun_is_given_back_to_the_front(coordinator: DataCoordinator) -> None:
    """A sample given back is the next one handed out."""
    coordinator.add([sample("a"), sample("b")])
    source = WorkerSource(coordinator, "w")
    got = await source.get_sample()
    assert got is not None
    source.give_back(got)
    assert await source.get_sample() is got


async def test_next_group_waits_and_ends(coordinator: DataCoordinator) -> None:
    """A trainer that waits gets each group once, then None."""
    coordinator.add([sample("a"), sample("b")])
    coordinator.finish()
    waiting = asyncio.ensure_future(coordinator.next_group())
    for _ in range(2):
        await coordinator.put_data(await lease(coordinator))
    assert [s.episode.uid for s in await waiting or ()] == ["a"]
    assert [s.episode.uid for s in await coordinator.next_group() or ()] == ["b"]
    assert await coordinator.next_group() is None


async def test_the_trainer_sees_each_ending_once(clock: Clock) -> None:
    """`on_ended` is called for what counts, not for what comes too late."""
    seen: list[RolloutSample] = []
    coordinator = DataCoordinator(runner=clock, on_ended=seen.append)
    coordinator.add([sample()])
    slow = await lease(coordinator, "slow")
    coordinator.release_worker("slow")
    quick = await lease(coordinator, "quick")
    await coordinator.put_data(quick, "quick")
    await coordinator.put_data(slow, "slow")
    assert seen == [quick]


async def test_stale_predictions_are_discarded(coordinator: DataCoordinator) -> None:
    """An older turn, another worker's attempt, an episode that has ended: none changes anything."""
    coordinator.add([sample()])
    got = await lease(coordinator, "w")
    episode = got.episode

    def report(tokens: float, seq: int, worker: str = "w") -> bool:
        return coordinator.report_prediction(
            episode, tokens, gen_turn_seq=seq, attempt=0, worker=worker
        )

    assert not report(1.0, 0)  # it is not in flight yet
    coordinator.replica_inflight(episode, "w")
    assert report(50.0, 2)
    assert not report(99.0, 1)
    assert not report(99.0, 3, worker="other")
    assert coordinator.get_priority_snapshot().predicted == {episode: 50.0}
    await coordinator.put_data(got, "w")
    assert not report(99.0, 4)
    assert coordinator.get_priority_snapshot().predicted == {}
    assert coordinator.gauges()["stale_predictions"] == 4
    with pytest.raises(ValueError, match="nan predicted tokens"):
        report(float("nan"), 5)


async def test_a_prediction_of_an_interrupted_attempt_says_nothing_of_the_next(
    coordinator: DataCoordinator,
) -> None:
    """The same worker has the episode again, and counts its turns anew."""
    coordinator.add([sample()])
    got = await lease(coordinator, "w")

    def report(tokens: float, *, attempt: int, seq: int) -> bool:
        return coordinator.report_prediction(
            got.episode, tokens, gen_turn_seq=seq, attempt=attempt, worker="w"
        )

    coordinator.replica_inflight(got.episode, "w")
    assert report(70.0, attempt=0, seq=7)
    got.attempt += 1
    await coordinator.put_partial(got, "w")
    assert await lease(coordinator, "w") is got
    coordinator.replica_inflight(got.episode, "w")
    assert not report(99.0, attempt=0, seq=8)
    assert coordinator.get_priority_snapshot().predicted == {}
    assert report(50.0, attempt=1, seq=1)
    assert coordinator.get_priority_snapshot().predicted == {got.episode: 50.0}


async def test_an_episode_without_a_lease_cannot_be_in_flight(
    coordinator: DataCoordinator,
) -> None:
    """A report that comes after the worker was given up leaves nothing running without an owner."""
    coordinator.add([sample()])
    got = await lease(coordinator, "w")
    coordinator.release_worker("w")
    coordinator.replica_inflight(got.episode, "w")
    assert coordinator.gauges()["inflight"] == 0
    await lease(coordinator, "w2")
    coordinator.replica_inflight(got.episode, "w2")
    coordinator.release_worker("w2")
    assert coordinator.gauges()["inflight"] == 0


async def test_snapshots_are_numbered_and_never_change(coordinator: DataCoordinator) -> None:
    """A snapshot that was taken stays as it was; the same one is given while nothing happens."""
    coordinator.add([sample("a", 0), sample("a", 1)])
    before = coordinator.get_priority_snapshot()
    assert coordinator.get_priority_snapshot() is before
    got = await lease(coordinator)
    await coordinator.put_data(got)
    after = coordinator.get_priority_snapshot()
    assert (before.group_left, after.group_left) == ({"a": 2}, {"a": 1})
    assert after.version > before.version
    with pytest.raises(TypeError):
        after.group_left["a"] = 5  # type: ignore[index]


async def test_a_snapshot_of_ten_thousand_episodes_costs_little(
    coordinator: DataCoordinator,
) -> None:
    """Ten milliseconds of CPU is the bound; the best of several is compared."""
    coordinator.add(sample(f"g{i // 4}", i % 4) for i in range(10_000))
    for _ in range(10_000):
        got = await lease(coordinator)
        coordinator.replica_inflight(got.episode)
        coordinator.report_prediction(got.episode, 100.0, gen_turn_seq=0, attempt=0)
    spent = []
    for turn in range(1, 6):
        coordinator.report_prediction(got.episode, 1.0 + turn, gen_turn_seq=turn, attempt=0)
        began = time.thread_time()
        snapshot = coordinator.get_priority_snapshot()
        spent.append(time.thread_time() - began)
    assert len(snapshot.predicted) == 10_000
    assert min(spent) < 0.01


async def test_workers_on_other_threads_share_one_coordinator() -> None:
    """Two threads drain the queue while this one adds to it; each sample ends once."""
    runner = AsyncioRunner()
    coordinator = DataCoordinator(runner=runner)

    async def work(name: str) -> int:
        done = 0
        while (got := await coordinator.get_sample(name)) is not None:
            await asyncio.sleep(0)
            if done % 5 == 4 and got.attempt == 0:
                got.attempt += 1
                await coordinator.put_partial(got, name)
            else:
                await coordinator.put_data(got, name)
            done += 1
        return done

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for name in ("w1", "w2"):
            tasks.create_task(runner.on_worker(name, work(name)))
        for i in range(100):
            coordinator.add([sample(f"s{i}", j) for j in range(4)])
            await asyncio.sleep(0)
        coordinator.finish()
    groups = coordinator.take_groups()
    assert sorted(g[0].episode.uid for g in groups) == sorted(f"s{i}" for i in range(100))
    assert coordinator.counts().delivered == 400
    coordinator.check()
    runner.close()
