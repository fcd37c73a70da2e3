"""_NodePool: what is left on one node, exactly.

Only PlacementPool touches it. `release` of every placement brings back what the node began with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executors.task_scheduler.resource import ONE, UNBOUNDED, Placement, units

if TYPE_CHECKING:
    from executors.task_scheduler.resource import Amounts, NodeResource


class _NodePool:
    """One node's GPUs, cores and memory."""

    __slots__ = ("cpu", "free_gpu", "gpus", "memory", "supply", "total_cpu", "total_memory")

    def __init__(self, supply: NodeResource) -> None:
        self.supply = supply
        self.gpus: dict[int, int] = dict.fromkeys(supply.gpus, ONE)
        """Units left on each GPU."""
        self.free_gpu = ONE * len(self.gpus)
        self.cpu = self.total_cpu = units(supply.cpu, name=f"{supply.node}.cpu")
        self.memory = self.total_memory = units(supply.memory_gb, name=f"{supply.node}.memory_gb")

    @property
    def freedom(self) -> tuple[int, int, int]:
        """What nodes are ordered by: free GPU first, then free cores, then free memory."""
        return self.free_gpu, self.cpu, self.memory

    def try_allocate(self, want: Amounts) -> Placement | None:
        """Take `want` from the GPUs that it leaves the least on; None where it does not fit."""
        if want.cpu > self.cpu or want.memory > self.memory:
            return None
        chosen = self._choose(want.gpu)
        if chosen is None:
            return None
        self._take(want, chosen, sign=1)
        return Placement(node=self.supply.node, gpus=chosen, taken=want)

    def release(self, placement: Placement) -> None:
        """Give a placement of this node back."""
        self._take(placement.taken, placement.gpus, sign=-1)

    def _choose(self, gpu: int) -> tuple[int, ...] | None:
        if gpu == 0:
            return ()
        if gpu > ONE:  # entire GPUs
            free = [name for name, left in self.gpus.items() if left == ONE]
            wanted = gpu // ONE
            return tuple(free[:wanted]) if len(free) >= wanted else None
        best = min(((left, name) for name, left in self.gpus.items() if left >= gpu), default=None)
        return None if best is None else (best[1],)

    def _take(self, amounts: Amounts, gpus: tuple[int, ...], *, sign: int) -> None:
        self.cpu -= sign * amounts.cpu
        self.memory -= sign * amounts.memory
        self.free_gpu -= sign * amounts.gpu
        for name in gpus:
            self.gpus[name] -= sign * (amounts.gpu // len(gpus))

    def max_tokens_for(self, want: Amounts) -> int:
        """How many of `want` the whole node can hold when nothing else is on it."""
        fits = [UNBOUNDED]
        if want.cpu:
            fits.append(self.total_cpu // want.cpu)
        if want.memory:
            fits.append(self.total_memory // want.memory)
        if want.gpu > ONE:
            fits.append(len(self.gpus) // (want.gpu // ONE))
        elif want.gpu:
            fits.append(len(self.gpus) * (ONE // want.gpu))
        return min(fits)

    def check(self) -> None:
        """Assert that nothing is over-committed and nothing was given back twice."""
        assert 0 <= self.cpu <= self.total_cpu, self.supply
        assert 0 <= self.memory <= self.total_memory, self.supply
        assert all(0 <= left <= ONE for left in self.gpus.values()), self.gpus
        assert self.free_gpu == sum(self.gpus.values()), self.gpus
