"""_NodePool: what is left on one node, exactly.

Only PlacementPool touches it. `release` of every placement brings back what the node began with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from executors.task_scheduler.resource import ONE, UNBOUNDED, Placement, units

if TYPE_CHECKING:
    from collections.abc import Collection

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

    def room_for(self, want: Amounts) -> int:
        """How many of `want` fit beside what is there."""
        return _room(want, cpu=self.cpu, memory=self.memory, gpus=self.gpus.values())

    def max_tokens_for(self, want: Amounts) -> int:
        """How many of `want` the whole node can hold when nothing else is on it."""
        gpus = [ONE] * len(self.gpus)
        return _room(want, cpu=self.total_cpu, memory=self.total_memory, gpus=gpus)

    def allocate(self, want: Amounts) -> Placement:
        """Take `want`, which fits, from the GPUs that it leaves the least on."""
        chosen = self._choose(want.gpu)
        self._take(want, chosen, sign=1)
        return Placement(node=self.supply.node, gpus=chosen, taken=want)

    def release(self, placement: Placement) -> None:
        """Give a placement of this node back."""
        self._take(placement.taken, placement.gpus, sign=-1)

    def _choose(self, gpu: int) -> tuple[int, ...]:
        if gpu == 0:
            return ()
        if gpu > ONE:  # entire GPUs
            free = [name for name, left in self.gpus.items() if left == ONE]
            return tuple(free[: gpu // ONE])
        return (min((left, name) for name, left in self.gpus.items() if left >= gpu)[1],)

    def _take(self, amounts: Amounts, gpus: tuple[int, ...], *, sign: int) -> None:
        self.cpu -= sign * amounts.cpu
        self.memory -= sign * amounts.memory
        self.free_gpu -= sign * amounts.gpu
        for name in gpus:
            self.gpus[name] -= sign * (amounts.gpu // len(gpus))

    def check(self) -> None:
        """Assert that nothing is over-committed and nothing was given back twice."""
        assert 0 <= self.cpu <= self.total_cpu, self.supply
        assert 0 <= self.memory <= self.total_memory, self.supply
        assert all(0 <= left <= ONE for left in self.gpus.values()), self.gpus
        assert self.free_gpu == sum(self.gpus.values()), self.gpus


def _room(want: Amounts, *, cpu: int, memory: int, gpus: Collection[int]) -> int:
    """How many of `want` fit into what is left; `gpus` is what is left on each."""
    fits = [UNBOUNDED]
    if want.cpu:
        fits.append(cpu // want.cpu)
    if want.memory:
        fits.append(memory // want.memory)
    if want.gpu > ONE:
        fits.append(sum(left == ONE for left in gpus) // (want.gpu // ONE))
    elif want.gpu:
        fits.append(sum(left // want.gpu for left in gpus))
    return min(fits)
