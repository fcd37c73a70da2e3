"""The prefix cache in pages, by hand and against a chain of hashed blocks."""

from __future__ import annotations

import asyncio
import itertools
import random

import numpy as np
import pytest
from engine_kit import Outcome, ask, request, spec

from agentflow.errors import ConfigError
from agentflow.sim.clock import run_virtual
from agentflow.sim.engine import SimulatedEngine
from agentflow.sim.radix import RadixCache


class HashedBlocks:
    """What other engines keep: each whole block by the hash of itself and all before it."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: set[int] = set()

    def chain(self, ids: list[int]) -> list[int]:
        """Hash the whole blocks of `ids`, each over the last."""
        blocks = [tuple(ids[i : i + self.size]) for i in range(0, len(ids), self.size)]
        whole = [block for block in blocks if len(block) == self.size]
        return list(itertools.accumulate(whole, lambda before, b: hash((before, b)), initial=0))[1:]

    def match(self, ids: list[int]) -> int:
        """Tokens of the longest prefix whose blocks are all held."""
        return self.size * sum(
            1 for _ in itertools.takewhile(self.held.__contains__, self.chain(ids))
        )


@pytest.mark.parametrize("page_size", [1, 2, 3, 16])
@pytest.mark.parametrize("seed", range(5))
def test_the_tree_finds_what_a_chain_of_hashed_blocks_finds(page_size: int, seed: int) -> None:
    """Until something is evicted the two are one: here of prompts that share beginnings."""
    rng = random.Random(seed)
    tree, blocks = RadixCache(page_size=page_size), HashedBlocks(page_size)
    prompts: list[list[int]] = [[]]
    for _ in range(200):
        start = rng.choice(prompts)
        ids = start[: rng.randint(0, len(start))] + rng.choices([1, 2], k=rng.randint(0, 40))
        prompts.append(ids)
        found, node = tree.match(np.array(ids, np.int32))
        assert found == blocks.match(ids)
        tree.insert(np.array(ids[found:], np.int32), behind=node)
        blocks.held.update(blocks.chain(ids))
        tree.check()
    assert tree.total == len(blocks.held) * page_size


def after(engine: SimulatedEngine, *prompts: list[int]) -> tuple[Outcome, float]:
    """Ask for one token after each prompt in turn; return the last outcome and its duration."""

    async def main() -> tuple[Outcome, float]:
        began, outcome = 0.0, Outcome()
        for number, ids in enumerate(prompts):
            began = asyncio.get_running_loop().time()
            outcome = await ask(engine, request(f"r{number}", ids, 1), at=began)
        return outcome, outcome.at - began

    return run_virtual(main())


def test_a_match_is_cut_to_whole_pages() -> None:
    """Of 10 ids that are cached, 9 may match, which are two pages of 4: 2 new over 8.

    2 + 2·.5 + 0.001·2·9 = 3.018 s; token by token it would be 1 over 9, 2.5095 s.
    """
    ten = list(range(10))
    again, took_s = after(SimulatedEngine(spec(page_size=4)), ten, ten)
    assert again.cached == 8
    assert took_s == pytest.approx(3.018)


def test_prompts_that_part_within_a_page_share_none_of_it() -> None:
    """Alike in 7 of 12 ids: one page of 4 is shared. 8 new: 2 + 4 + 0.001·8·8 = 6.064 s."""
    one = list(range(12))
    other, took_s = after(SimulatedEngine(spec(page_size=4)), one, [*one[:7], 50, 51, 52, 53, 54])
    assert other.cached == 4
    assert took_s == pytest.approx(6.064)


def test_a_page_longer_than_the_prompt_caches_nothing() -> None:
    """As in SGLang: there is no whole page to keep."""
    ten = list(range(10))
    again, _ = after(SimulatedEngine(spec(page_size=64)), ten, ten)
    assert again.cached == 0


def test_a_tail_that_fills_no_page_is_freed_with_its_request() -> None:
    """12 tokens hold a prompt of 7 and one of 4, as only a page of 4 stays of the first.

    So the second finds room for its 4 and evicts nothing, and the first's page is there yet.
    """
    engine = SimulatedEngine(spec(page_size=4, kv_tokens=12, reserve_clip=1))
    again, _ = after(engine, list(range(7)), list(range(20, 24)), list(range(7)))
    assert again.cached == 4
    assert engine.use.evicted_tokens == 0


def test_a_page_of_nothing_is_refused() -> None:
    """Naming field, value and what would be right."""
    with pytest.raises(ConfigError, match="page_size = 0 must be at least 1"):
        spec(page_size=0)
