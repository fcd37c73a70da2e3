"""A real SGLang on the CPU: no token lost, doubled or misattributed, whatever is done to it.

`real_runs` says how a run's ids are known beforehand.
"""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest
from real_runs import BUDGET, PROMPTS, SEED, Runs, chain, load, prompt_of
from support import Sink

from agentflow.engine.rids import RidFactory
from agentflow.engine.sglang import PauseMode, SglangEngine
from agentflow.errors import EngineAdminFailed, GenerationAborted
from agentflow.types import EpisodeId, GenerationRequest, SamplingParams

pytestmark = pytest.mark.sglang

RUNS = 240
CONCURRENT = 16


async def test_hundreds_of_aborts_leave_no_trace(
    engine: SglangEngine, successors: dict[str, list[int]]
) -> None:
    """240 generations, aborted at random moments under load and continued, equal calm ones.

    And what the server counts as generated is what came, not a token more.
    """
    chance, counted = random.Random(SEED), await engine.generated_tokens()
    calm, stormy = Runs(engine), Runs(engine)
    async with asyncio.TaskGroup() as group:
        undisturbed = [group.create_task(calm.to_the_end(n, [])) for n in range(PROMPTS)]
    slots = asyncio.Semaphore(CONCURRENT)

    async def one(number: int) -> Sink:
        aborts = sorted(chance.randrange(BUDGET) for _ in range(chance.choice([0, 1, 1, 2, 3])))
        async with slots:
            return await stormy.to_the_end(number, aborts)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(number)) for number in range(RUNS)]
    for number, task in enumerate(tasks):
        sink, reference = task.result(), undisturbed[number % PROMPTS].result()
        expected = chain(prompt_of(number), BUDGET, successors["a"])
        assert reference.ids == expected
        assert sink.ids == expected
        np.testing.assert_allclose(sink.logprobs, reference.logprobs, atol=2e-3)
        assert set(sink.versions) == {0}
    assert stormy.aborts > RUNS / 2
    (load,) = await engine.loads()
    assert (load.running, load.waiting) == (0, 0)
    received = sum(len(task.result().ids) for task in (*undisturbed, *tasks))
    assert await engine.generated_tokens() - counted == received == (PROMPTS + RUNS) * BUDGET


@pytest.mark.parametrize("mode", list(PauseMode))
async def test_weights_change_under_running_generations(
    engine: SglangEngine, successors: dict[str, list[int]], mode: PauseMode
) -> None:
    """In every mode each token is what its version's weights say after the one before it.

    But one: SGLang's overlapped scheduler has a token in flight when it is paused in place, and
    gives it the new version.
    """
    runs = Runs(engine)
    budget = 40
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(runs.to_the_end(n, [], budget)) for n in range(4)]
        first = group.create_task(_tokens_on(engine, 12))
        await first
        await engine.pause(mode)
        await load(engine, "b", 7)
        if mode is not PauseMode.IN_PLACE:
            await engine.flush()
        await engine.resume()
    names = {0: successors["a"], 7: successors["b"]}
    versions = set()
    for number, task in enumerate(tasks):
        sink = task.result()
        assert len(sink.ids) == budget
        before = [prompt_of(number)[-1], *sink.ids]
        told_late = [
            at for at, token in enumerate(sink.ids) if token != names[sink.versions[at]][before[at]]
        ]
        late = [sink.versions.index(7)] if mode is PauseMode.IN_PLACE and 7 in sink.versions else []
        assert told_late in ([], late)
        for at in told_late:
            assert sink.ids[at] == names[0][before[at]]
        versions |= set(sink.versions)
    assert 0 in versions
    if mode is not PauseMode.DRAIN:
        assert 7 in versions
    assert (runs.aborts > 0) is (mode is PauseMode.ABORT)


async def _tokens_on(engine: SglangEngine, count: int) -> None:
    """Return when a generation of its own, beside the others, has had `count` tokens."""
    await Runs(engine).to_the_end(99, [], count)


async def test_a_retracted_generation_that_is_aborted_keeps_its_tokens(
    engine: SglangEngine, successors: dict[str, list[int]]
) -> None:
    """Paused in mode retract, an abort ends a generation at once, with all it had."""
    runs, sink = Runs(engine), Sink()
    request = runs.request(0, sink, 0, budget=2000)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_aborted(engine, request, sink))
        await sink.reached(6)
        async with engine.paused(PauseMode.RETRACT):
            await engine.abort(request.rid)
            await task
            assert await engine.unhealthy() == []
    assert sink.ids == chain(prompt_of(0), len(sink.ids), successors["a"])
    assert len(sink.ids) >= 6


async def _aborted(engine: SglangEngine, request: GenerationRequest, sink: Sink) -> None:
    with pytest.raises(GenerationAborted):
        await engine.generate(request, sink)


async def test_a_checkpoint_that_does_not_exist_is_refused(engine: SglangEngine) -> None:
    """The server's own words are in the error, and it generates on."""
    with pytest.raises(EngineAdminFailed, match="update_weights_from_disk"):
        async with engine.paused(PauseMode.RETRACT):
            await engine.update_weights_from_disk("/nowhere/at/all", version=1)
    sink = await Runs(engine).to_the_end(1, [], 4)
    assert len(sink.ids) == 4


async def test_metrics_and_capacity_are_read(engine: SglangEngine) -> None:
    """Gauges come once each, and the capacity is the launch line's."""
    metrics = (await engine.metrics())[0]
    assert metrics["sglang:num_running_reqs"] == 0
    info = await engine.info()
    assert info.kv_tokens == 16_384
    assert info.vocab_size == 348
    assert info.context_length == 4090


async def test_the_longest_prompt_that_is_allowed_is_served(engine: SglangEngine) -> None:
    """`context_length` is the truth: one token less of prompt leaves room for one."""
    limit = (await engine.info()).context_length
    request = GenerationRequest(
        rid=RidFactory().make(EpisodeId(uid="long"), attempt=0, generation=0),
        input_ids=np.full(limit - 1, 5, np.int32),
        sampling=SamplingParams(temperature=0.0, max_new_tokens=1),
    )
    sink = Sink()
    await engine.generate(request, sink)
    assert len(sink.ids) == 1
