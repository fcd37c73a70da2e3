"""PlacementPool: admission of whole batches, and the tokens of the samples inside one.

    cluster layout ─▶ PlacementPool ─ acquire_batch ─▶ BatchLease ─▶ LocalPool ─ token ─▶ sample

Owns what is free on every node. A batch gets all its tokens or none. Who waits is served strictly
in order, so that a large batch is never overtaken for ever by small ones; nobody, not even
`try_acquire_batch`, passes the queue. Every change is one synchronous step on one event loop: that
is the pool's lock, so another thread is refused. What a lease took comes back exactly once.
"""

from __future__ import annotations

import asyncio
import heapq
import threading
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from executors.task_scheduler.node_pool import _NodePool
from executors.task_scheduler.resource import UNBOUNDED, Placement, Resource, check_sample

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from executors.task_scheduler.resource import Amounts, NodeResource


class PlacementDeadlock(ConfigError, AssertionError):
    """A batch that the pool can never admit, told before anything waits for it."""


@dataclass(slots=True, kw_only=True, eq=False)
class BatchLease:
    """The tokens of one admitted batch; give it back with `PlacementPool.release`."""

    tokens: tuple[Placement, ...]
    released: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class _Waiter:
    want: Amounts
    count: int
    granted: asyncio.Future[BatchLease] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class PlacementPool:
    """The global pool: what the cluster layout says, less what admitted batches hold."""

    def __init__(self, nodes: Iterable[NodeResource]) -> None:
        """Raises ConfigError for two nodes of one name, or none."""
        self._nodes: dict[str, _NodePool] = {}
        for supply in nodes:
            if supply.node in self._nodes:
                raise ConfigError(f"cluster layout: node {supply.node!r} stands there twice")
            self._nodes[supply.node] = _NodePool(supply)
        if not self._nodes:
            raise ConfigError("cluster layout: it has no node; name at least one")
        self._in_order = tuple(self._nodes.values())
        self._waiting: deque[_Waiter] = deque()
        self._leases = 0
        self._thread = threading.get_ident()

    # --- acquiring ----------------------------------------------------------------------------

    def try_acquire_batch(
        self, budget: Resource, per_sample: Resource, max_tokens: int
    ) -> BatchLease | None:
        """Take one `per_sample` at a time until `budget` or `max_tokens` is reached, or nothing.

        None when not all of them can be placed now, or when others wait for their turn. Raises
        ConfigError for a demand that is on no GPU, PlacementDeadlock for a budget without room.
        """
        self._claim()
        count = _count(budget, per_sample, max_tokens)
        return None if self._waiting else self._take(per_sample.amounts, count)

    async def acquire_batch(
        self, budget: Resource, per_sample: Resource, max_tokens: int
    ) -> BatchLease:
        """The same, waiting in order. Raises PlacementDeadlock for what can never be admitted."""
        count = _count(budget, per_sample, max_tokens)
        capacity = self.max_tokens_for(per_sample)
        if count > capacity:
            raise PlacementDeadlock(
                f"Deadlock: a batch needs {count} placement tokens of {per_sample} but the pool"
                f" can only provide {capacity}"
            )
        lease = self.try_acquire_batch(budget, per_sample, max_tokens)
        if lease is not None:
            return lease
        waiter = _Waiter(want=per_sample.amounts, count=count)
        self._waiting.append(waiter)
        try:
            return await waiter.granted
        except asyncio.CancelledError:
            self._give_up(waiter)
            raise

    def _claim(self) -> None:
        """Refuse another thread, except where nobody holds anything or waits."""
        thread = threading.get_ident()
        if thread != self._thread and (self._leases or self._waiting):
            raise RuntimeError("a PlacementPool is used, and released to, by one thread alone")
        self._thread = thread

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.release(waiter.granted.result())
            return
        if waiter in self._waiting:  # else a release in between has passed it already
            self._waiting.remove(waiter)
        self._serve()

    def release(self, lease: BatchLease) -> None:
        """Give a batch's tokens back and admit who waits. Raises ValueError the second time."""
        self._claim()
        if lease.released:
            raise ValueError("this lease was released already")
        lease.released = True
        self._leases -= 1
        for token in lease.tokens:
            self._nodes[token.node].release(token)
        self._serve()

    def _serve(self) -> None:
        while self._waiting:
            head = self._waiting[0]
            if not head.granted.cancelled():
                lease = self._take(head.want, head.count)
                if lease is None:
                    return
                head.granted.set_result(lease)
            self._waiting.popleft()

    def _take(self, want: Amounts, count: int) -> BatchLease | None:
        """Take all or nothing, each from the node that is the freest then.

        Equals come in the layout's order. How many alike fit is known before the first is placed,
        so that nothing has to be rolled back.
        """
        rooms = [node.room_for(want) for node in self._in_order]
        if sum(rooms) < count:
            return None
        freest = [(*_order(node), i) for i, node in enumerate(self._in_order) if rooms[i]]
        heapq.heapify(freest)
        tokens: list[Placement] = []
        while len(tokens) < count:
            index = freest[0][-1]
            node = self._in_order[index]
            tokens.append(node.allocate(want))
            rooms[index] -= 1
            if rooms[index]:
                heapq.heapreplace(freest, (*_order(node), index))
            else:
                heapq.heappop(freest)
        self._leases += 1
        return BatchLease(tokens=tuple(tokens))

    # --- looking ------------------------------------------------------------------------------

    def max_tokens_for(self, per_sample: Resource) -> int:
        """How many of `per_sample` the empty pool can hold; UNBOUNDED for a demand of nothing."""
        want = per_sample.amounts
        return min(UNBOUNDED, sum(node.max_tokens_for(want) for node in self._in_order))

    @property
    def waiting(self) -> int:
        """Batches in the queue."""
        return len(self._waiting)

    def gauges(self) -> dict[str, float]:
        """Batches admitted and waiting."""
        return {"leases": float(self._leases), "waiting": float(len(self._waiting))}

    def free(self) -> dict[str, tuple[int, int, int]]:
        """Exact units of GPU, CPU and memory that are free on each node."""
        return {name: node.freedom for name, node in self._nodes.items()}

    def check(self) -> None:
        """Assert the invariants: nothing over-committed, no waiter that could be served."""
        for node in self._nodes.values():
            node.check()
        if self._waiting:
            head = self._waiting[0]
            room = sum(node.room_for(head.want) for node in self._in_order)
            assert room < head.count, "the first in the queue fits and was not served"


def _count(budget: Resource, per_sample: Resource, max_tokens: int) -> int:
    """Tell how many tokens a batch asks for."""
    check_sample(per_sample, name="per_sample")
    room = budget.tokens(per_sample)
    if room < 1:
        raise PlacementDeadlock(f"Deadlock: the budget {budget} has no room for one {per_sample}")
    if max_tokens < 0:
        raise ValueError(f"max_tokens is {max_tokens}; it must not be negative")
    return min(room, max_tokens)


def _order(node: _NodePool) -> tuple[int, int, int]:
    gpu, cpu, memory = node.freedom
    return -gpu, -cpu, -memory


class LocalPool:
    """The short-lived pool of one batch: hands one token to each running sample."""

    def __init__(self, tokens: Sequence[Placement] | None) -> None:
        """`tokens` of the batch's lease; None where batches are not gated."""
        self._gated = tokens is not None
        self._free: asyncio.LifoQueue[Placement] = asyncio.LifoQueue()
        for token in reversed(tokens or ()):
            self._free.put_nowait(token)

    @asynccontextmanager
    async def token(self) -> AsyncIterator[Placement | None]:
        """Hold one token, waiting for it; None where batches are not gated."""
        if not self._gated:
            yield None
            return
        token = await self._free.get()
        try:
            yield token
        finally:
            self._free.put_nowait(token)
