"""PlacementPool: admission of whole batches, and the tokens of the samples inside one.

    cluster layout ─▶ PlacementPool ─ acquire_batch ─▶ BatchLease ─▶ LocalPool ─ token ─▶ sample

Owns what is free on every node. A batch gets all its tokens or none. Who waits is served strictly
in order, so that a large batch is never overtaken for ever by small ones; nobody, not even
`try_acquire_batch`, passes the queue. Every change is one synchronous step on one event loop: that
is the pool's lock. What a lease took comes back exactly once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agentflow.errors import ConfigError
from executors.task_scheduler.node_pool import _NodePool
from executors.task_scheduler.resource import UNBOUNDED, Placement, Resource

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
        self._waiting: deque[_Waiter] = deque()
        self._leases = 0

    # --- acquiring ----------------------------------------------------------------------------

    def try_acquire_batch(
        self, budget: Resource, per_sample: Resource, max_tokens: int
    ) -> BatchLease | None:
        """Take one `per_sample` at a time until `budget` or `max_tokens` is reached, or nothing.

        None when any of them cannot be placed now, or when others wait for their turn.
        """
        if self._waiting:
            return None
        return self._take(per_sample.amounts, min(budget.tokens(per_sample), max_tokens))

    async def acquire_batch(
        self, budget: Resource, per_sample: Resource, max_tokens: int
    ) -> BatchLease:
        """The same, waiting in order. Raises PlacementDeadlock for what can never be admitted."""
        count = min(budget.tokens(per_sample), max_tokens)
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

    def _give_up(self, waiter: _Waiter) -> None:
        if waiter.granted.done() and not waiter.granted.cancelled():
            self.release(waiter.granted.result())
            return
        self._waiting.remove(waiter)
        self._serve()

    def release(self, lease: BatchLease) -> None:
        """Give a batch's tokens back and admit who waits. Raises ValueError the second time."""
        if lease.released:
            raise ValueError("this lease was released already")
        lease.released = True
        self._leases -= 1
        self._give_back(lease.tokens)
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
        taken: list[Placement] = []
        for _ in range(count):
            placement = self._place(want)
            if placement is None:
                self._give_back(taken)
                return None
            taken.append(placement)
        self._leases += 1
        return BatchLease(tokens=tuple(taken))

    def _place(self, want: Amounts) -> Placement | None:
        """Place one sample on the freest node that takes it; equals in the layout's order."""
        nodes = self._nodes.values()
        freest = max(nodes, key=lambda node: node.freedom)
        placement = freest.try_allocate(want)
        if placement is not None or len(self._nodes) == 1:
            return placement
        for node in sorted(nodes, key=lambda node: node.freedom, reverse=True):
            placement = node.try_allocate(want)
            if placement is not None:
                return placement
        return None

    def _give_back(self, placements: Iterable[Placement]) -> None:
        for placement in placements:
            self._nodes[placement.node].release(placement)

    # --- looking ------------------------------------------------------------------------------

    def max_tokens_for(self, per_sample: Resource) -> int:
        """How many of `per_sample` the empty pool can hold; UNBOUNDED for a demand of nothing."""
        want = per_sample.amounts
        return min(UNBOUNDED, sum(node.max_tokens_for(want) for node in self._nodes.values()))

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
            trial = self._take(head.want, head.count)
            assert trial is None, "the first in the queue fits and was not served"


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
