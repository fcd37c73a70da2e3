"""RadixCache: which token prefixes an engine holds KV for, as SGLang's radix tree keeps them.

Owns cached prefixes and their locks, in whole pages: SGLang's default is a page of one token. Knows
no request and no time: recency is a counter. Invariants (`check`): `total` and `protected` are the
sums over nodes; a locked node's ancestors are locked; only unlocked leaves are evicted, least
recently used first.

A chain of hashed blocks, as other engines have it, finds the same prefixes with pages of a block's
size. The tree is what SGLang has: what it evicts is a whole leaf, a turn's tokens rather than a
block, and that decides what is prefilled again. Runs of tokens are compared as bytes, so a match
costs one memory comparison a node.
"""

from __future__ import annotations

import heapq
import itertools
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ID_BYTES = 4


class RadixNode:
    """A run of tokens behind its parent's; children start with different tokens."""

    __slots__ = ("children", "locks", "parent", "run", "size", "used")

    def __init__(self, run: bytes, parent: RadixNode | None, used: int) -> None:
        self.run = run
        self.size = len(run) // _ID_BYTES
        self.parent = parent
        self.children: dict[bytes, RadixNode] = {}
        self.locks = 0
        self.used = used


class RadixCache:
    """The prefixes in KV memory. Sizes are in tokens."""

    def __init__(self, *, page_size: int = 1) -> None:
        """Prefixes are matched, held and split in pages of `page_size` tokens."""
        self.page_size = page_size
        self._page = page_size * _ID_BYTES
        self._serial = itertools.count(1)
        self._root = RadixNode(b"", None, 0)
        self._leaves: list[tuple[int, int, RadixNode]] = []
        self.total = 0
        """Tokens held."""
        self.protected = 0
        """Tokens that running requests use; they are not evicted."""

    def match(self, ids: NDArray[np.int32]) -> tuple[int, RadixNode]:
        """Find the longest held prefix of `ids`: its length and the node it ends at."""
        return self._descend(self._root, self._pages(ids))

    def insert(self, ids: NDArray[np.int32], *, behind: RadixNode) -> RadixNode:
        """Hold the whole pages of `ids` behind `behind`; return the node they end at.

        What is held already is found, not held twice.
        """
        wanted = self._pages(ids)
        known, end = self._descend(behind, wanted)
        rest = wanted[known * _ID_BYTES :]
        return self._add_leaf(end, rest) if rest else end

    def lock(self, node: RadixNode) -> None:
        """Keep the prefix that ends at `node` from eviction."""
        step: RadixNode | None = node
        while step is not None:
            step.locks += 1
            if step.locks == 1:
                self.protected += step.size
            step = step.parent

    def extend_lock(self, locked: RadixNode, node: RadixNode) -> None:
        """Turn a lock on `locked` into one on `node`, which lies behind it."""
        step = node
        while step is not locked:
            step.locks += 1
            if step.locks == 1:
                self.protected += step.size
            step = _parent(step)

    def unlock(self, node: RadixNode) -> None:
        """Take one lock back."""
        step: RadixNode | None = node
        while step is not None:
            step.locks -= 1
            if step.locks == 0:
                self.protected -= step.size
            step = step.parent
        self._offer(node)

    def evict(self, tokens: int) -> int:
        """Drop whole least recently used leaves until `tokens` are free; return how many were."""
        freed = 0
        while freed < tokens and self._leaves:
            used, _, node = heapq.heappop(self._leaves)
            if node.used == used and _evictable(node):
                freed += node.size
                self._drop(node)
        self.total -= freed
        return freed

    def clear(self) -> None:
        """Forget everything. Raises RuntimeError while anything is locked."""
        if self.protected:
            raise RuntimeError(f"{self.protected} tokens are in use and cannot be flushed")
        self._root.children.clear()
        self._leaves.clear()
        self.total = 0

    def check(self) -> None:
        """Assert the invariants."""
        nodes = [self._root]
        for node in nodes:
            nodes += node.children.values()
            for first, child in node.children.items():
                assert child.parent is node
                assert child.run.startswith(first)
                assert node.locks >= child.locks
        assert self.total == sum(node.size for node in nodes)
        locked = sum(node.size for node in nodes if node.locks)
        assert self.protected == locked

    # --- inside -------------------------------------------------------------------------------

    def _descend(self, node: RadixNode, wanted: bytes) -> tuple[int, RadixNode]:
        at, end, page, serial = 0, len(wanted), self._page, self._serial
        while at < end:
            child = node.children.get(wanted[at : at + page])
            if child is None:
                break
            run = child.run
            if not wanted.startswith(run, at):
                child = self._split(child, self._common(run, wanted[at : at + len(run)]))
                child.used = next(serial)
                return (at + len(child.run)) // _ID_BYTES, child
            child.used = next(serial)
            at += len(run)
            node = child
        self._offer(node)
        return at // _ID_BYTES, node

    def _pages(self, ids: NDArray[np.int32]) -> bytes:
        whole = len(ids) - len(ids) % self.page_size
        return np.ascontiguousarray(ids[:whole], np.int32).tobytes()

    def _common(self, left: bytes, right: bytes) -> int:
        """Bytes of the longest common prefix, in whole pages."""
        size = min(len(left), len(right)) // _ID_BYTES
        same = np.frombuffer(left, np.int32, size) == np.frombuffer(right, np.int32, size)
        common = size if same.all() else int(same.argmin())
        return (common - common % self.page_size) * _ID_BYTES

    def _split(self, node: RadixNode, at: int) -> RadixNode:
        """Cut `node` after `at` bytes; the new upper part is returned, `node` keeps the end."""
        parent = _parent(node)
        upper = RadixNode(node.run[:at], parent, node.used)
        upper.locks = node.locks
        parent.children[upper.run[: self._page]] = upper
        node.run = node.run[at:]
        node.size -= upper.size
        node.parent = upper
        upper.children[node.run[: self._page]] = node
        return upper

    def _add_leaf(self, parent: RadixNode, run: bytes) -> RadixNode:
        leaf = RadixNode(run, parent, next(self._serial))
        parent.children[run[: self._page]] = leaf
        self.total += leaf.size
        self._offer(leaf)
        return leaf

    def _drop(self, node: RadixNode) -> None:
        parent = _parent(node)
        del parent.children[node.run[: self._page]]
        node.parent = None
        self._offer(parent)

    def _offer(self, node: RadixNode) -> None:
        """Queue `node` for eviction if that may happen; stale entries are skipped there."""
        if _evictable(node):
            heapq.heappush(self._leaves, (node.used, next(self._serial), node))


def _evictable(node: RadixNode) -> bool:
    return node.parent is not None and not node.locks and not node.children


def _parent(node: RadixNode) -> RadixNode:
    if node.parent is None:
        raise RuntimeError("the root is neither split nor dropped")
    return node.parent
