"""The pool against random layouts, demands, releases and cancellations."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executors.task_scheduler import NodeResource, PlacementPool, Resource
from executors.task_scheduler.placement import BatchLease

MANY = Resource(gpu=1000, concurrency=10**6, cpu=10**6, memory_gb=10**6)

NODES = st.lists(
    st.tuples(st.integers(0, 4), st.sampled_from([0.5, 4, 7.3]), st.sampled_from([1, 16, 33.3])),
    min_size=1,
    max_size=4,
)
DEMANDS = st.builds(
    Resource,
    gpu=st.sampled_from([0, 0.1, 0.33, 0.5, 1 / 3, 1, 2]),
    cpu=st.sampled_from([0, 0.1, 1, 2.5]),
    memory_gb=st.sampled_from([0, 0.7, 4]),
)
MOVES = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), DEMANDS, st.integers(1, 9)),
        st.tuples(st.just("release"), st.integers(0, 99)),
        st.tuples(st.just("cancel"), st.integers(0, 99)),
    ),
    max_size=40,
)


@given(NODES, MOVES)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_conservation_no_overcommitment_order_and_no_starvation(
    nodes: list[tuple[int, float, float]], moves: list[Any]
) -> None:
    """Whatever happens: nothing is over-committed, waiters are served in order, all comes back."""
    asyncio.run(_play(nodes, moves))


async def _play(nodes: list[tuple[int, float, float]], moves: list[Any]) -> None:
    pool = PlacementPool(
        NodeResource(node=f"n{i}", gpus=tuple(range(g)), cpu=c, memory_gb=m)
        for i, (g, c, m) in enumerate(nodes)
    )
    whole = pool.free()
    waiting: deque[tuple[int, asyncio.Task[BatchLease]]] = deque()
    held: list[BatchLease] = []
    served: list[int] = []

    async def settle() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        for number, task in list(waiting):
            if task.done():
                waiting.remove((number, task))
                held.append(task.result())
                served.append(number)
        pool.check()

    for number, move in enumerate(moves):
        if move[0] == "ask":
            _, demand, count = move
            if count > pool.max_tokens_for(demand):
                assert pool.try_acquire_batch(MANY, demand, count) is None  # it never fits
            else:
                ask = pool.acquire_batch(MANY, demand, count)
                waiting.append((number, asyncio.create_task(ask)))
        elif move[0] == "release" and held:
            pool.release(held.pop(move[1] % len(held)))
        elif move[0] == "cancel" and waiting:
            _, task = waiting[move[1] % len(waiting)]
            waiting.remove((_, task))
            task.cancel()
            await asyncio.wait([task])
        await settle()
    while waiting or held:  # everybody gets a turn as long as somebody gives back
        assert held, "who waits in a free pool waits for ever"
        pool.release(held.pop())
        await settle()
    assert served == sorted(served), "somebody was overtaken"
    assert pool.free() == whole, "capacity was lost, or made"


@given(NODES, DEMANDS)
@settings(max_examples=100, deadline=None)
def test_max_tokens_for_is_what_an_empty_pool_gives(
    nodes: list[tuple[int, float, float]], demand: Resource
) -> None:
    """Exactly that many fit, and not one more."""
    pool = PlacementPool(
        NodeResource(node=f"n{i}", gpus=tuple(range(g)), cpu=c, memory_gb=m)
        for i, (g, c, m) in enumerate(nodes)
    )
    most = pool.max_tokens_for(demand)
    if most > 10**6:
        return  # it asks for nothing
    lease = pool.try_acquire_batch(MANY, demand, most)
    assert lease is not None
    pool.check()
    pool.release(lease)
    assert pool.try_acquire_batch(MANY, demand, most + 1) is None
