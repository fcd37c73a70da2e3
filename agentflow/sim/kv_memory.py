"""KvMemory: whose tokens lie in an engine's KV memory, and what can be made free.

Owns the prefix cache and the count of tokens outside it. Invariant: cached + own ≤ capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentflow.sim.radix import RadixCache

if TYPE_CHECKING:
    from agentflow.sim.sequence import Sequence as Request

_UNLIMITED = 1 << 60


class KvMemory:
    """KV tokens of one engine."""

    def __init__(self, capacity: int | None, *, prefix_cache: bool, page_size: int = 1) -> None:
        self.capacity = capacity if capacity is not None else _UNLIMITED
        self._shares = prefix_cache
        self._cache = RadixCache(page_size=page_size)
        self.own = 0
        """Tokens of running requests that are not in the cache."""
        self.evicted = 0

    @property
    def cached(self) -> int:
        """Tokens in the cache."""
        return self._cache.total

    @property
    def available(self) -> int:
        """Tokens that are free or can be made free."""
        return self.capacity - self.own - self._cache.protected

    def attach(self, seq: Request) -> None:
        """Lock the longest cached prefix of the context, one token short of it at most."""
        if not self._shares:
            seq.held = 0
            return
        seq.held, seq.node = self._cache.match(seq.ids(0, seq.context - 1))
        self._cache.lock(seq.node)

    def detach(self, seq: Request) -> None:
        """Throw the sequence's own KV away and let go of its prefix."""
        self.own -= seq.own
        seq.own = seq.held = 0
        if seq.node is not None:
            self._cache.unlock(seq.node)
            seq.node = None

    def grow(self, seq: Request, tokens: int) -> None:
        """Give the sequence KV for `tokens` more. Raises RuntimeError if that cannot be."""
        self.take(tokens)
        seq.own += tokens

    def take(self, tokens: int) -> None:
        """Count KV that the caller adds to its sequences. Raises RuntimeError if there is none."""
        self.make_free(tokens)
        self.own += tokens

    def make_free(self, tokens: int) -> None:
        """Evict until `tokens` are free. Raises RuntimeError if that cannot be."""
        short = tokens - (self.capacity - self.own - self._cache.total)
        if short <= 0:
            return
        freed = self._cache.evict(short)
        self.evicted += freed
        if freed < short:
            raise RuntimeError(f"{short - freed} KV tokens are missing: admission reckoned wrongly")

    def publish(self, seq: Request, length: int) -> None:
        """Move the KV of the whole pages of the first `length` tokens to the cache, and lock it."""
        if not self._shares:
            return
        length -= length % self._cache.page_size
        assert seq.node is not None
        node = self._cache.insert(seq.ids(seq.held, length), behind=seq.node)
        self._cache.extend_lock(seq.node, node)
        moved = length - seq.held
        seq.own -= moved
        self.own -= moved
        seq.node, seq.held = node, length

    def flush(self) -> None:
        """Forget every prefix. Raises RuntimeError while one is in use."""
        self._cache.clear()

    def check(self) -> None:
        """Assert the invariants."""
        self._cache.check()
        assert self.own >= 0
        assert self.own + self._cache.total <= self.capacity
