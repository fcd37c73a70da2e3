"""Scripts that show in what order an engine does things: played on the simulated and a real one.

Each takes an engine with `SLOTS` slots and `KV_TOKENS` KV tokens and returns what an observer sees
without a clock: who ends before whom, what was cached, who was retracted. `OBSERVED` is what SGLang
0.5.23 answered.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.errors import GenerationAborted
from agentflow.types import GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

SLOTS = 2
KV_TOKENS = 1024
NONCE = iter(range(1 << 30))


class Played:
    """One request: what it got, and how it ended."""

    def __init__(self, name: str, prompt: Sequence[int], tokens: int, priority: int = 0) -> None:
        self.name = name
        self.ids: list[int] = []
        self.begun = asyncio.Event()
        self.cached = self.retractions = -1
        self.request = GenerationRequest(
            rid=f"{name}-{next(NONCE):08d}",
            input_ids=np.array(prompt, np.int32),
            sampling=SamplingParams(temperature=0.0, max_new_tokens=tokens),
            priority=priority,
        )

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take tokens."""
        self.ids += ids
        self.begun.set()

    async def on(self, engine: Any, ended: list[str]) -> Played:
        """Play to the end."""
        try:
            result = await engine.generate(self.request, self)
            self.cached, self.retractions = result.cached_tokens, result.retractions
        except GenerationAborted:
            pass
        ended.append(self.name)
        return self


def prompt_of(name: str, length: int) -> list[int]:
    """Return ids that begin with a token of this name's own."""
    first = 3 + 17 * (ord(name[0]) - ord("a"))
    return [first, *(3 + (first * 7 + i * 5) % 340 for i in range(length - 1))]


async def in_turn(engine: Any, played: Sequence[Played]) -> list[str]:
    """Submit one after the other, each when the engine has had time to take the last one in.

    The first `SLOTS` are awaited to have begun; returns names in the order they ended.
    """
    ended: list[str] = []
    async with asyncio.TaskGroup() as group:
        for number, one in enumerate(played):
            group.create_task(one.on(engine, ended))
            if number < SLOTS:
                await one.begun.wait()
            else:
                await asyncio.sleep(0.05)
    return ended


async def first_come_first_served(engine: Any) -> Any:
    """Two slots: short requests pass through one, in order, while a long one holds the other."""
    lengths = {"a": 120, "b": 60, "c": 6, "d": 6, "e": 6}
    return await in_turn(engine, [Played(n, prompt_of(n, 20), t) for n, t in lengths.items()])


async def priority_orders_the_queue(engine: Any) -> Any:
    """Waiting requests go by priority; a difference of at most 10 throws nobody out."""
    asked = [("a", 120, 0), ("b", 60, 0), ("c", 6, 1), ("d", 6, 9), ("e", 6, 5)]
    return await in_turn(engine, [Played(n, prompt_of(n, 20), t, p) for n, t, p in asked])


async def a_much_higher_priority_preempts(engine: Any) -> Any:
    """One of the two running requests is thrown out, and ends last, with all its tokens."""
    asked = [("a", 80, 0), ("b", 120, 0), ("c", 6, 100)]
    played = [Played(n, prompt_of(n, 20), t, p) for n, t, p in asked]
    ended = await in_turn(engine, played)
    return ended, [len(one.ids) for one in played]


async def prefixes_are_found_again(engine: Any) -> Any:
    """A repeated prompt misses its last token; a next turn misses the last made one and the new."""
    first = await Played("a", prompt_of("a", 20), 9).on(engine, [])
    same = await Played("a", prompt_of("a", 20), 1).on(engine, [])
    following = [*prompt_of("a", 20), *first.ids, *prompt_of("h", 7)]
    second = await Played("a", following, 5).on(engine, [])
    other = await Played("b", prompt_of("b", 20), 1).on(engine, [])
    return [first.cached, same.cached, second.cached, other.cached]


async def an_abort_keeps_the_kv(engine: Any) -> Any:
    """Going on from what came before the abort, only the last token is computed anew."""
    one = Played("a", prompt_of("a", 20), 200)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(one.on(engine, []))
        await one.begun.wait()
        await engine.abort(one.request.rid)
    got = task.result().ids
    rest = await Played("a", [*prompt_of("a", 20), *got], 3).on(engine, [])
    return 20 + len(got) - rest.cached


async def what_fits_nowhere_waits(engine: Any) -> Any:
    """A slot is free, but memory is promised to the running request: the second one waits."""
    played = [Played("a", prompt_of("a", 300), 100), Played("b", prompt_of("b", 700), 30)]
    ended: list[str] = []
    async with asyncio.TaskGroup() as group:
        group.create_task(played[0].on(engine, ended))
        await played[0].begun.wait()
        group.create_task(played[1].on(engine, ended))
        await played[1].begun.wait()
        ended.append("b begins")
    return ended


async def memory_runs_out(engine: Any) -> Any:
    """Both were admitted on a hope: the shorter output goes back, and loses no token."""
    played = [Played("a", prompt_of("a", 20), 650), Played("b", prompt_of("b", 20), 520)]
    ended = await in_turn(engine, played)
    return ended, [(len(one.ids), one.retractions) for one in played]


SCRIPTS: tuple[Callable[[Any], Awaitable[Any]], ...] = (
    first_come_first_served,
    priority_orders_the_queue,
    a_much_higher_priority_preempts,
    prefixes_are_found_again,
    an_abort_keeps_the_kv,
    what_fits_nowhere_waits,
    memory_runs_out,
)

OBSERVED: dict[str, Any] = {
    "first_come_first_served": ["b", "c", "d", "e", "a"],
    "priority_orders_the_queue": ["b", "d", "e", "c", "a"],
    "a_much_higher_priority_preempts": [["c", "a", "b"], [80, 120, 6]],
    "prefixes_are_found_again": [0, 19, 28, 0],
    "an_abort_keeps_the_kv": 1,
    "what_fits_nowhere_waits": ["a", "b begins", "b"],
    "memory_runs_out": [["a", "b"], [[650, 0], [520, 1]]],
}
