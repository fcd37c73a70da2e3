"""Section 3: the two-level resource pool."""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from executors.task_scheduler import NodeResource, PlacementDeadlock, PlacementPool, Resource
from executors.task_scheduler.placement import LocalPool
from executors.task_scheduler.resource import ONE, UNBOUNDED

MANY = Resource(gpu=1000, concurrency=10**6, cpu=10**6, memory_gb=10**6)


def pool(*nodes: tuple[int, float, float]) -> PlacementPool:
    """Make a pool of (GPUs, CPU, GB) nodes n0, n1 and so on."""
    return PlacementPool(
        NodeResource(node=f"n{i}", gpus=tuple(range(gpus)), cpu=cpu, memory_gb=memory)
        for i, (gpus, cpu, memory) in enumerate(nodes)
    )


def test_tokens_come_from_the_node_with_the_most_free_gpu() -> None:
    """Greedy, one token at a time, across nodes."""
    it = pool((1, 100, 100), (3, 100, 100))
    lease = it.try_acquire_batch(MANY, Resource(gpu=1), 4)
    assert lease is not None
    assert [token.node for token in lease.tokens] == ["n1", "n1", "n0", "n1"]


def test_a_full_freest_node_sends_the_token_to_the_next() -> None:
    """The most free GPU does not help where memory is short."""
    it = pool((4, 100, 1), (1, 100, 100))
    lease = it.try_acquire_batch(MANY, Resource(gpu=0.5, memory_gb=10), 1)
    assert lease is not None
    assert lease.tokens[0].node == "n1"


def test_what_cannot_be_placed_whole_is_rolled_back_whole() -> None:
    """Nothing of a refused batch stays taken."""
    it = pool((2, 4, 8), (1, 4, 8))
    before = it.free()
    assert it.try_acquire_batch(MANY, Resource(gpu=1), 4) is None
    assert it.free() == before
    it.check()


def test_tokens_end_at_the_budget_or_at_max_tokens() -> None:
    """Whichever is smaller."""
    it = pool((8, 96, 320))
    lease = it.try_acquire_batch(
        Resource(gpu=2, concurrency=99, cpu=96, memory_gb=320), Resource(gpu=0.5, cpu=1), 99
    )
    assert lease is not None
    assert len(lease.tokens) == 4
    it.release(lease)
    lease = it.try_acquire_batch(MANY, Resource(gpu=0.5), 3)
    assert lease is not None
    assert len(lease.tokens) == 3


@pytest.mark.parametrize(
    ("gpu", "packed"), [(0.33, 3), (0.1, 10), (1 / 3, 3), (1 / 7, 7), (0.5, 2), (0.51, 1), (1, 1)]
)
def test_fractions_pack_a_gpu(gpu: float, packed: int) -> None:
    """floor(1.0 / gpu) samples share one, by `max_tokens_for` and in fact."""
    it = pool((1, 100, 100))
    assert it.max_tokens_for(Resource(gpu=gpu)) == packed
    lease = it.try_acquire_batch(MANY, Resource(gpu=gpu), packed)
    assert lease is not None
    assert it.try_acquire_batch(MANY, Resource(gpu=gpu), 1) is None


def test_a_sample_goes_to_the_gpu_that_it_leaves_the_least_on() -> None:
    """Best fit keeps whole GPUs whole."""
    it = pool((2, 100, 100))
    first = it.try_acquire_batch(MANY, Resource(gpu=0.5), 1)
    second = it.try_acquire_batch(MANY, Resource(gpu=0.25), 1)
    assert first is not None
    assert second is not None
    assert second.tokens[0].gpus == first.tokens[0].gpus


def test_whole_gpus_are_taken_from_one_node() -> None:
    """Two GPUs for one sample never span nodes, and never share."""
    it = pool((3, 100, 100), (1, 100, 100))
    assert it.max_tokens_for(Resource(gpu=2)) == 1
    lease = it.try_acquire_batch(MANY, Resource(gpu=2), 1)
    assert lease is not None
    assert lease.tokens[0].gpus == (0, 1)
    assert it.try_acquire_batch(MANY, Resource(gpu=2), 1) is None
    it.release(lease)
    it.check()


def test_without_gpu_cpu_and_memory_alone_gate() -> None:
    """The SWE recipe's `gpu=0`."""
    it = pool((0, 96, 384))
    assert it.max_tokens_for(Resource(cpu=4, memory_gb=16)) == 24
    assert it.max_tokens_for(Resource(cpu=4, memory_gb=32)) == 12
    assert it.max_tokens_for(Resource()) == UNBOUNDED
    lease = it.try_acquire_batch(MANY, Resource(cpu=4, memory_gb=16), 24)
    assert lease is not None
    assert lease.tokens[0].gpus == ()
    assert it.free()["n0"] == (0, 0, 0)


@pytest.mark.slow
def test_a_million_cycles_leave_no_drift() -> None:
    """Fractions that binary numbers cannot hold come back exactly."""
    it = pool((2, 0.7, 0.3))
    before = it.free()
    for _ in range(1_000_000):
        lease = it.try_acquire_batch(MANY, Resource(gpu=0.33, cpu=0.1, memory_gb=0.07), 1)
        assert lease is not None
        it.release(lease)
    assert it.free() == before


def test_a_lease_is_released_once() -> None:
    """The second time would make capacity out of nothing."""
    it = pool((1, 1, 1))
    lease = it.try_acquire_batch(MANY, Resource(gpu=1), 1)
    assert lease is not None
    it.release(lease)
    with pytest.raises(ValueError, match="released already"):
        it.release(lease)


async def test_a_large_batch_is_not_overtaken_by_small_ones() -> None:
    """Who came later waits, also where it would fit; `try_acquire_batch` does not pass either."""
    it = pool((0, 10, 100))
    one = Resource(cpu=1)
    held = await it.acquire_batch(MANY, one, 5)
    order: list[str] = []

    async def wait(name: str, count: int) -> None:
        lease = await it.acquire_batch(MANY, one, count)
        order.append(name)
        it.release(lease)

    async with asyncio.TaskGroup() as group:
        group.create_task(wait("large", 10))
        await asyncio.sleep(0)
        group.create_task(wait("small", 1))
        await asyncio.sleep(0)
        assert it.waiting == 2
        assert it.try_acquire_batch(MANY, one, 1) is None
        it.check()
        it.release(held)
    assert order == ["large", "small"]


async def test_a_cancelled_waiter_leaves_the_queue_and_lets_the_next_in() -> None:
    """Nothing is lost to somebody who has gone."""
    it = pool((0, 2, 100))
    one = Resource(cpu=1)
    held = await it.acquire_batch(MANY, one, 1)
    async with asyncio.TaskGroup() as group:
        large = group.create_task(it.acquire_batch(MANY, one, 2))
        await asyncio.sleep(0)
        small = group.create_task(it.acquire_batch(MANY, one, 1))
        await asyncio.sleep(0)
        large.cancel()
    it.release(small.result())
    it.release(held)
    assert it.free()["n0"][1] == 2 * ONE


async def test_a_waiter_cancelled_after_its_grant_gives_it_back() -> None:
    """Cancelled between being served and noticing it."""
    it = pool((0, 1, 100))
    one = Resource(cpu=1)
    held = await it.acquire_batch(MANY, one, 1)
    async with asyncio.TaskGroup() as group:
        waiter = group.create_task(it.acquire_batch(MANY, one, 1))
        await asyncio.sleep(0)
        it.release(held)
        waiter.cancel()
    assert it.free()["n0"][1] == ONE


async def test_a_waiter_passed_by_after_its_cancellation_ends_as_cancelled() -> None:
    """Something is released between its cancelling and its noticing it."""
    it = pool((0, 2, 100))
    one = Resource(cpu=1)
    held = await it.acquire_batch(MANY, one, 2)
    waiter = asyncio.create_task(it.acquire_batch(MANY, one, 2))
    await asyncio.sleep(0)
    waiter.cancel()
    it.release(held)
    await asyncio.wait([waiter])
    assert waiter.cancelled()
    assert it.free()["n0"][1] == 2 * ONE
    assert it.gauges() == {"leases": 0.0, "waiting": 0.0}


def test_another_thread_is_refused_while_somebody_holds_a_lease() -> None:
    """The pool's lock is its event loop; a free pool may move to another thread."""
    it = pool((1, 1, 1))
    with ThreadPoolExecutor(1) as other:
        lease = it.try_acquire_batch(MANY, Resource(gpu=1), 1)
        assert lease is not None
        with pytest.raises(RuntimeError, match="by one thread alone"):
            other.submit(it.release, lease).result()
        it.release(lease)
        assert other.submit(it.try_acquire_batch, MANY, Resource(gpu=1), 1).result() is not None


def test_a_thousand_nodes_share_a_batch_evenly() -> None:
    """The freest node has its turn each time."""
    endless = Resource(gpu=10**5, concurrency=10**6, cpu=10**6)
    it = pool(*[(8, 96, 384)] * 1000)
    lease = it.try_acquire_batch(endless, Resource(gpu=0.5, cpu=1), 2000)
    assert lease is not None
    assert set(Counter(token.node for token in lease.tokens).values()) == {2}
    assert it.try_acquire_batch(endless, Resource(gpu=0.5, cpu=1), 14_001) is None
    it.check()


def test_a_demand_that_no_batch_can_have_is_refused() -> None:
    """One and a half GPUs, a budget without room for one, a negative number of tokens."""
    it = pool((4, 4, 4))
    with pytest.raises(ConfigError, match=r"per_sample\.gpu is 1\.5"):
        it.try_acquire_batch(MANY, Resource(gpu=1.5), 1)
    with pytest.raises(PlacementDeadlock, match="has no room for one"):
        it.try_acquire_batch(Resource(cpu=1), Resource(cpu=2), 1)
    with pytest.raises(ValueError, match="max_tokens is -1"):
        it.try_acquire_batch(MANY, Resource(cpu=1), -1)
    assert it.gauges()["leases"] == 0.0


@pytest.mark.parametrize("bad", [0, -1, 2.5, float("nan"), True])
def test_a_concurrency_must_be_a_whole_number(bad: int) -> None:
    """Nothing else is a number of samples."""
    with pytest.raises(ConfigError, match=r"Resource\.concurrency is"):
        Resource(concurrency=bad)


async def test_waiting_for_the_impossible_is_refused() -> None:
    """The pool does not hang either when nobody asserted before."""
    with pytest.raises(PlacementDeadlock, match="needs 3 placement tokens"):
        await pool((2, 9, 9)).acquire_batch(MANY, Resource(gpu=1), 3)


async def test_run_all_asserts_before_launching_that_every_batch_can_be_admitted() -> None:
    """The text's message, and what to change; nothing has started."""
    handler = parts.Handler()
    spec = parts.spec(
        handler,
        resource=Resource(concurrency=20, cpu=96, memory_gb=320),
        run_resource=Resource(cpu=4, memory_gb=16),
        batch_size=2,
    )
    it = parts.scheduler(spec, pool=pool((0, 96, 64)))
    with pytest.raises(AssertionError) as caught:
        await it.run_all([parts.task(n=8, index=i) for i in range(3)])
    assert (
        "Deadlock: EvaluatorSpec 'swe' needs 16 placement tokens but the pool can only provide"
        in (str(caught.value))
    )
    assert "provide 4" in str(caught.value)
    assert "Lower its batch_size" in str(caught.value)
    assert handler.order == []


async def test_the_largest_batch_caps_what_is_asserted() -> None:
    """A budget of many tokens is no demand for them."""
    spec = parts.spec(
        resource=Resource(concurrency=20, cpu=96, memory_gb=320),
        run_resource=Resource(cpu=4, memory_gb=16),
    )
    await parts.scheduler(spec, pool=pool((0, 16, 64))).run_all([parts.task(n=4)])


async def test_without_a_pool_batches_launch_ungated() -> None:
    """All at once, and their samples have no placement."""
    together = asyncio.Barrier(50)
    handler = parts.Handler(behave=lambda *_: together.wait())
    it = parts.scheduler(parts.spec(handler))
    await it.run_all([parts.task(index=i) for i in range(50)])
    assert all(context.placement is None for context in handler.contexts.values())


async def test_a_pool_gates_whole_batches() -> None:
    """Only as many run as fit, and the rest follows in order."""
    handler = parts.Handler(behave=lambda *_: asyncio.sleep(0))
    spec = parts.spec(
        handler, run_resource=Resource(cpu=4), resource=Resource(concurrency=2, cpu=96)
    )
    it = pool((0, 10, 100))
    await parts.scheduler(spec, pool=it).run_all([parts.task(n=2, index=i) for i in range(5)])
    assert handler.most_running == 2
    assert handler.order == [f"swe-{i}#{j}" for i in range(5) for j in range(2)]
    assert it.gauges() == {"leases": 0.0, "waiting": 0.0}


async def test_the_local_pool_hands_a_token_to_each_running_sample() -> None:
    """Who comes later waits until one is given back."""
    it = pool((2, 9, 9))
    lease = it.try_acquire_batch(MANY, Resource(gpu=1), 2)
    assert lease is not None
    local = LocalPool(lease.tokens)
    async with local.token() as first, local.token() as second:
        assert first is not None
        assert second is not None
        assert {first.gpus, second.gpus} == {(0,), (1,)}
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01), local.token():
                pass
    async with local.token() as again:
        assert again in {first, second}


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), "4", True, 1e-12])
def test_an_amount_must_be_one(bad: float) -> None:
    """Negative, endless, or no number at all: named and refused."""
    with pytest.raises(ConfigError, match=r"Resource\.cpu is"):
        Resource(cpu=bad)


def test_a_spec_whose_budget_holds_no_sample_is_refused() -> None:
    """And so is a sample on one and a half GPUs."""
    with pytest.raises(ConfigError, match="has no room for one sample"):
        parts.spec(run_resource=Resource(cpu=4), resource=Resource(cpu=2))
    with pytest.raises(ConfigError, match=r"run_resource\.gpu is 1\.5"):
        parts.spec(run_resource=Resource(gpu=1.5))


def test_sample_resource_is_the_per_field_maximum() -> None:
    """The peak of a run and its judging, which never overlap."""
    spec = parts.spec(
        run_resource=Resource(cpu=4, memory_gb=8),
        eval_resource=Resource(cpu=2, memory_gb=16),
        resource=Resource(cpu=96, memory_gb=320),
    )
    assert spec.sample_resource == Resource(cpu=4, memory_gb=16)
