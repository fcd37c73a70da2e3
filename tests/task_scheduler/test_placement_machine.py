"""The pool against random layouts, demands, releases and cancellations."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from executors.task_scheduler import NodeResource, PlacementPool, Resource

if TYPE_CHECKING:
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
        st.tuples(st.just("cancel and release"), st.integers(0, 99)),
    ),
    max_size=40,
)


def pool_of(nodes: list[tuple[int, float, float]]) -> PlacementPool:
    """Make a pool of (GPUs, CPU, GB) nodes."""
    return PlacementPool(
        NodeResource(node=f"n{i}", gpus=tuple(range(g)), cpu=c, memory_gb=m)
        for i, (g, c, m) in enumerate(nodes)
    )


@given(NODES, MOVES)
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_conservation_no_overcommitment_order_and_no_starvation(
    nodes: list[tuple[int, float, float]], moves: list[Any]
) -> None:
    """Whatever happens: nothing is over-committed, waiters are served in order, all comes back."""
    asyncio.run(_play(nodes, moves))


class _Play:
    """A pool, who waits for it, and who holds what."""

    def __init__(self, nodes: list[tuple[int, float, float]]) -> None:
        self.pool = pool_of(nodes)
        self.whole = self.pool.free()
        self.waiting: deque[tuple[int, asyncio.Task[BatchLease]]] = deque()
        self.held: list[BatchLease] = []
        self.served: list[int] = []

    async def settle(self) -> None:
        """Let waiters notice that they were served; then everything must be in order."""
        for _ in range(3):
            await asyncio.sleep(0)
        for number, task in list(self.waiting):
            if task.done():
                self.waiting.remove((number, task))
                self.held.append(task.result())
                self.served.append(number)
        self.pool.check()

    def ask(self, number: int, demand: Resource, count: int) -> None:
        if count > self.pool.max_tokens_for(demand):
            assert self.pool.try_acquire_batch(MANY, demand, count) is None  # it never fits
            return
        ask = self.pool.acquire_batch(MANY, demand, count)
        self.waiting.append((number, asyncio.create_task(ask)))

    def release(self, which: int) -> None:
        if self.held:
            self.pool.release(self.held.pop(which % len(self.held)))

    async def cancel(self, which: int, *, release: bool) -> None:
        """Cancel a waiter; `release` something before it notices."""
        if self.waiting:
            entry = self.waiting[which % len(self.waiting)]
            self.waiting.remove(entry)
            entry[1].cancel()
            if release:
                self.release(which)
            await asyncio.wait([entry[1]])
            assert entry[1].cancelled()


async def _play(nodes: list[tuple[int, float, float]], moves: list[Any]) -> None:
    play = _Play(nodes)
    for number, (kind, *rest) in enumerate(moves):
        if kind == "ask":
            play.ask(number, *rest)
        elif kind == "release":
            play.release(*rest)
        else:
            await play.cancel(*rest, release=kind != "cancel")
        await play.settle()
    while play.waiting or play.held:  # everybody gets a turn as long as somebody gives back
        assert play.held, "who waits in a free pool waits for ever"
        play.release(0)
        await play.settle()
    assert play.served == sorted(play.served), "somebody was overtaken"
    assert play.pool.free() == play.whole, "capacity was lost, or made"


@given(NODES, DEMANDS)
@settings(max_examples=50, deadline=None)
def test_max_tokens_for_is_what_an_empty_pool_gives(
    nodes: list[tuple[int, float, float]], demand: Resource
) -> None:
    """Exactly that many fit, and not one more."""
    pool = pool_of(nodes)
    most = pool.max_tokens_for(demand)
    if most > 10**6:
        return  # it asks for nothing
    lease = pool.try_acquire_batch(MANY, demand, most)
    assert lease is not None
    pool.check()
    pool.release(lease)
    assert pool.try_acquire_batch(MANY, demand, most + 1) is None
