"""What every `Model` must do. Subclass EngineContract and give it an `engine` fixture.

The engine behind it must, at temperature 0, answer `PROMPT` with the same tokens each time, with at
least `LONG` of them before it stops by itself, and still be at work when the first token arrives.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from agentflow.engine.rids import RidFactory
from agentflow.errors import ContextFull, EngineRejected, GenerationAborted
from agentflow.types import (
    EpisodeId,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.protocols import Model

DEADLINE_S = 60
"""A real engine on a busy CPU takes seconds; a hang must still fail."""


class CollectingSink:
    """A TokenSink that keeps everything and wakes who waits for the n-th token."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[int] = []
        self._changed = asyncio.Event()

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take tokens, as TokenSink says."""
        assert len(ids) == len(logprobs)
        self.ids += ids
        self.logprobs += logprobs
        self.versions += [version] * len(ids)
        self._changed.set()

    async def reached(self, count: int) -> None:
        """Wait until `count` tokens are here."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.ids) < count:
                self._changed.clear()
                await self._changed.wait()


class EngineContract:
    """The cases. `prompt` may be overridden where the engine needs special ids."""

    LONG = 64
    """Tokens that the undisturbed answer has at least."""

    @pytest.fixture
    def prompt(self) -> list[int]:
        """Ids that the engine answers at length."""
        return list(range(10, 42))

    @pytest.fixture
    def rids(self) -> RidFactory:
        """Rids of this test's own nonce."""
        return RidFactory()

    def request(
        self, prompt: Sequence[int], rids: RidFactory, n: int = 0, **sampling: object
    ) -> GenerationRequest:
        """Make the n-th greedy request of a test."""
        params = replace(SamplingParams(temperature=0.0, max_new_tokens=self.LONG), **sampling)
        return GenerationRequest(
            rid=rids.make(EpisodeId(uid="contract"), attempt=0, generation=n),
            input_ids=np.asarray(prompt, np.int32),
            sampling=params,
        )

    async def play(
        self, engine: Model, request: GenerationRequest
    ) -> tuple[CollectingSink, GenerationResult]:
        """Run one request to its end."""
        sink = CollectingSink()
        async with asyncio.timeout(DEADLINE_S):
            return sink, await engine.generate(request, sink)

    async def test_info_describes_the_engine(self, engine: Model) -> None:
        """The description has a name and usable limits, and asking twice gives the same."""
        info = await engine.info()
        assert info.name
        assert info.vocab_size > 0
        assert info.context_length > self.LONG
        assert await engine.info() == info

    async def test_generates_to_the_budget(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """A budget below the answer's length yields exactly that many valid, versioned tokens."""
        info = await engine.info()
        sink, result = await self.play(engine, self.request(prompt, rids, max_new_tokens=17))
        assert result.finish is FinishReason.LENGTH
        assert len(sink.ids) == 17
        assert all(0 <= i < info.vocab_size for i in sink.ids)
        assert all(np.isfinite(p) and p <= 0 for p in sink.logprobs)
        assert set(sink.versions) == {info.weight_version}

    async def test_greedy_repeats(self, engine: Model, prompt: list[int], rids: RidFactory) -> None:
        """The same greedy request gives the same ids."""
        first, _ = await self.play(engine, self.request(prompt, rids, 0))
        second, _ = await self.play(engine, self.request(prompt, rids, 1))
        assert first.ids == second.ids

    async def test_stops_at_a_stop_id(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """The generation ends with the stop id, which is kept and named."""
        whole, _ = await self.play(engine, self.request(prompt, rids, 0))
        stop = whole.ids[8]
        length = whole.ids.index(stop) + 1
        sink, result = await self.play(
            engine, self.request(prompt, rids, 1, stop_token_ids=(stop,))
        )
        assert sink.ids == whole.ids[:length]
        assert result.finish is FinishReason.STOP
        assert result.matched == stop

    @pytest.mark.parametrize("offset", [-1, 0, 1_000_000])
    async def test_rejects_ids_outside_the_vocabulary(
        self, engine: Model, prompt: list[int], rids: RidFactory, offset: int
    ) -> None:
        """A bad id is refused by name, and the engine lives on."""
        bad = offset if offset < 0 else (await engine.info()).vocab_size + offset
        with pytest.raises(EngineRejected, match=str(bad)):
            await self.play(engine, self.request([*prompt, bad], rids, 0))
        sink, _ = await self.play(engine, self.request(prompt, rids, 1, max_new_tokens=3))
        assert len(sink.ids) == 3

    async def test_rejects_an_empty_prompt(self, engine: Model, rids: RidFactory) -> None:
        """No ids, no generation."""
        with pytest.raises(EngineRejected):
            await self.play(engine, self.request([], rids))

    async def test_rejects_what_does_not_fit_the_context(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """Prompt plus budget above the context length is refused, and no token comes."""
        limit = (await engine.info()).context_length
        sink = CollectingSink()
        too_much = self.request(prompt, rids, 0, max_new_tokens=limit - len(prompt) + 1)
        with pytest.raises((EngineRejected, ContextFull)):
            await engine.generate(too_much, sink)
        assert sink.ids == []
        with pytest.raises((EngineRejected, ContextFull)):
            await engine.generate(self.request(prompt * (limit // len(prompt) + 1), rids, 1), sink)

    async def test_rejects_a_rid_in_flight(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """The second request of one rid is refused, the first goes on undisturbed."""
        request = self.request(prompt, rids)
        sink = CollectingSink()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(engine.generate(request, sink))
            await sink.reached(1)
            with pytest.raises(EngineRejected):
                await engine.generate(request, CollectingSink())
        assert first.result().finish is not None
        again, _ = await self.play(engine, self.request(prompt, rids, 1))
        assert sink.ids == again.ids

    async def test_abort_of_an_unknown_rid_is_harmless(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """Nothing happens, neither to others nor to a later request of that rid."""
        request = self.request(prompt, rids, max_new_tokens=5)
        await engine.abort(request.rid)
        sink, _ = await self.play(engine, request)
        assert len(sink.ids) == 5

    async def test_abort_after_the_end_is_harmless(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """A late abort does not hit the episode's next request."""
        first = self.request(prompt, rids, 0, max_new_tokens=5)
        await self.play(engine, first)
        await engine.abort(first.rid)
        sink, _ = await self.play(engine, self.request(prompt, rids, 1, max_new_tokens=5))
        assert len(sink.ids) == 5

    async def test_an_aborted_turn_continues_to_the_same_tokens(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """The sink keeps what came before the abort; going on from it loses and changes nothing."""
        whole, _ = await self.play(engine, self.request(prompt, rids, 0))
        sink = CollectingSink()
        request = self.request(prompt, rids, 1)
        with pytest.raises(GenerationAborted):
            async with asyncio.timeout(DEADLINE_S):
                await _aborted_after(engine, request, sink, 1)
        assert 1 <= len(sink.ids) < len(whole.ids)
        assert sink.ids == whole.ids[: len(sink.ids)]
        left = self.LONG - len(sink.ids)
        rest, _ = await self.play(
            engine, self.request([*prompt, *sink.ids], rids, 2, max_new_tokens=left)
        )
        assert sink.ids + rest.ids == whole.ids
        np.testing.assert_allclose(sink.logprobs + rest.logprobs, whole.logprobs, atol=5e-2)

    async def test_abort_ends_exactly_one_request(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """Of two requests with neighbouring rids only the named one ends."""
        one, sixteen = self.request(prompt, rids, 1), self.request(prompt, rids, 16)
        sink, other = CollectingSink(), CollectingSink()
        async with asyncio.TaskGroup() as group:
            kept = group.create_task(engine.generate(sixteen, other))
            await other.reached(1)
            with pytest.raises(GenerationAborted):
                await _aborted_after(engine, one, sink, 1)
        assert kept.result().finish is not None
        whole, _ = await self.play(engine, self.request(prompt, rids, 17))
        assert other.ids == whole.ids

    async def test_cancelling_keeps_what_was_received(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """After a cancellation the sink holds a prefix and the engine takes the next request."""
        whole, _ = await self.play(engine, self.request(prompt, rids, 0))
        sink = CollectingSink()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(engine.generate(self.request(prompt, rids, 1), sink))
            await sink.reached(1)
            task.cancel()
        assert task.cancelled()
        kept = list(sink.ids)
        assert kept == whole.ids[: len(kept)]
        again, _ = await self.play(engine, self.request(prompt, rids, 2))
        assert again.ids == whole.ids
        assert sink.ids == kept

    async def test_concurrent_requests_do_not_mix(
        self, engine: Model, prompt: list[int], rids: RidFactory
    ) -> None:
        """Four at once each get the tokens that one alone gets."""
        alone, _ = await self.play(engine, self.request(prompt, rids, 0))
        async with asyncio.TaskGroup() as group:
            tasks = [
                group.create_task(self.play(engine, self.request(prompt, rids, n)))
                for n in range(1, 5)
            ]
        assert [task.result()[0].ids for task in tasks] == [alone.ids] * 4

    async def test_close_is_idempotent(self, engine: Model) -> None:
        """Closing twice is closing once."""
        await engine.info()
        await engine.close()
        await engine.close()


async def _aborted_after(
    engine: Model, request: GenerationRequest, sink: CollectingSink, tokens: int
) -> None:
    """Run `request`, abort it as soon as `tokens` have come, and raise how it ended."""

    async def abort_in_time() -> None:
        await sink.reached(tokens)
        await engine.abort(request.rid)

    aborted: GenerationAborted | None = None
    async with asyncio.TaskGroup() as group:
        group.create_task(abort_in_time())
        try:
            await engine.generate(request, sink)
        except GenerationAborted as error:
            aborted = error
    if aborted is not None:
        raise aborted
