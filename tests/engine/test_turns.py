"""TurnModel: however often a turn is aborted, the record is that of the undisturbed run."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.engine.model_folder import bundled_model_folder
from agentflow.engine.policy_script import PolicyScript
from agentflow.engine.rids import RidFactory
from agentflow.engine.scripted import ScriptedEngine, ScriptedSettings
from agentflow.engine.template_renderer import TemplateRenderer
from agentflow.engine.token_record import TokenRecord
from agentflow.engine.turns import EngineAccess, TurnModel
from agentflow.errors import ContextFull, EngineDied, GenerationAborted
from agentflow.types import (
    EpisodeId,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    ModelInfo,
    SamplingParams,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.conversation import Conversation
    from agentflow.protocols import TokenSink
    from agentflow.types import Message

FOLDER = bundled_model_folder()
RENDERER = TemplateRenderer(FOLDER)
END = RENDERER.end_of_turn_ids[0]
EPISODE = EpisodeId(uid="turns")
ARRAYS = ("prompts", "responses", "response_mask", "rollout_log_prob", "weight_versions")


@dataclass(frozen=True)
class Answers:
    """A policy with given answers."""

    texts: Sequence[str]
    name: str = "answers"

    def answer(self, conversation: Conversation) -> str:
        """Return the turn's answer."""
        return self.texts[conversation.turn]


class Flaky:
    """An engine that aborts itself after given numbers of chunks, as a scheduler would."""

    def __init__(self, inner: ScriptedEngine, abort_after: Sequence[int]) -> None:
        self._inner = inner
        self._abort_after = list(abort_after)
        self.rids: list[str] = []
        self.requests: list[list[int]] = []

    async def info(self) -> ModelInfo:
        """Describe the inner engine."""
        return await self._inner.info()

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Generate, and abort after the next number of chunks."""
        self.rids.append(request.rid)
        self.requests.append(request.input_ids.tolist())
        left = self._abort_after.pop(0) if self._abort_after else -1
        async with asyncio.TaskGroup() as group:
            generation = group.create_task(self._caught(request, sink))
            for _ in range(left + 1):
                await asyncio.sleep(0)
            if left >= 0:
                await self._inner.abort(request.rid)
        outcome = generation.result()
        if isinstance(outcome, GenerationResult):
            return outcome
        raise outcome

    async def _caught(
        self, request: GenerationRequest, sink: TokenSink
    ) -> GenerationResult | GenerationAborted | EngineDied:
        try:
            return await self._inner.generate(request, sink)
        except (GenerationAborted, EngineDied) as error:
            return error

    async def abort(self, rid: str) -> None:
        """Abort at the inner engine."""
        await self._inner.abort(rid)

    async def close(self) -> None:
        """Close the inner engine."""
        await self._inner.close()


def engine_of(texts: Sequence[str], aborts: Sequence[int] = (), **settings: int) -> Flaky:
    """Make an engine that gives these answers and aborts as told."""
    script = PolicyScript(Answers(texts), renderer=RENDERER, tokenizer=FOLDER.tokenizer)
    inner = ScriptedEngine(
        script,
        tokenizer=FOLDER.tokenizer,
        settings=ScriptedSettings(**{"chunk_tokens": 3, **settings}),
    )
    return Flaky(inner, aborts)


def model_of(engine: Flaky, budget: int = 2048, **sampling: tuple[str, ...]) -> TurnModel:
    """Make the episode's model over an engine."""
    return TurnModel(
        episode=EPISODE,
        record=TokenRecord(),
        sampling=SamplingParams(max_new_tokens=budget, **sampling),
        access=EngineAccess(engine=engine, renderer=RENDERER, rids=RidFactory()),
    )


async def converse(model: TurnModel, observations: Sequence[str]) -> list[Message]:
    """Play one turn for each observation, generating again after each abort."""
    messages: list[Message] = []
    for observation in observations:
        messages.append({"role": "user", "content": observation})
        while True:
            try:
                turn = await model.generate(messages)
            except GenerationAborted:
                continue
            break
        messages.append({"role": "assistant", "content": turn.text})
    return messages


def assert_same(one: TokenRecord, two: TokenRecord) -> None:
    """Compare all arrays of two records."""
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name), err_msg=name)


texts = st.lists(
    st.sampled_from(["word ", "<|im_end|>", "\n", "`", "é", "中", "🙂", "x=1;", "<think>", " "]),
    max_size=12,
).map("".join)
turns = st.lists(st.tuples(texts, texts), min_size=1, max_size=4)


@settings(max_examples=40)
@given(turns, st.lists(st.integers(0, 4), max_size=8), st.sampled_from([5, 17, 2048]))
def test_aborts_leave_no_trace(
    played: list[tuple[str, str]], aborts: list[int], budget: int
) -> None:
    """Any conversation, aborted anywhere, cut by length or not, gives the undisturbed record."""
    observations, answers = zip(*played, strict=True)

    async def both() -> None:
        calm, flaky = engine_of(answers), engine_of(answers, aborts)
        undisturbed, disturbed = model_of(calm, budget), model_of(flaky, budget)
        assert await converse(undisturbed, observations) == await converse(disturbed, observations)
        assert_same(undisturbed._record, disturbed._record)
        assert disturbed.forks == 0
        assert len(set(flaky.rids)) == len(flaky.rids)
        for before, after in zip(flaky.requests, flaky.requests[1:], strict=False):
            assert after[: len(before)] == before
        check_alignment(disturbed._record, answers, budget)

    asyncio.run(both())


def check_alignment(record: TokenRecord, answers: Sequence[str], budget: int) -> None:
    """The generated stretches are the answers, cut to the budget; everything else is mask 0."""
    mask = record.response_mask
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask, [0]])))
    stretches = [record.responses[a:b].tolist() for a, b in edges.reshape(-1, 2)]
    expected = [[*FOLDER.tokenizer.encode_plain(text), END][:budget] for text in answers]
    assert stretches == expected
    assert (record.weight_versions[mask == 0] == -1).all()
    assert (record.weight_versions[mask == 1] == 0).all()
    assert (record.rollout_log_prob[mask == 0] == 0).all()


@settings(max_examples=30)
@given(turns)
def test_the_record_is_the_templates_rendering(played: list[tuple[str, str]]) -> None:
    """Whole turns and observations are, id for id, what the chat format writes."""
    observations, answers = zip(*played, strict=True)
    model = model_of(engine_of(answers))
    asyncio.run(converse(model, observations))
    special = FOLDER.tokenizer.encode
    plain = FOLDER.tokenizer.encode_plain
    expected: list[int] = []
    for observation, answer in played:
        if expected:
            expected += special("\n")
        # A content's first and last characters may merge with the template's: encode them as one.
        expected += [*special("<|im_start|>"), *plain(f"user\n{observation}"), END]
        expected += [*special("\n<|im_start|>assistant\n"), *plain(answer), END]
    assert model._record.ids.tolist() == expected


async def test_the_budget_spans_continuations() -> None:
    """A turn of ten tokens stays one of ten, however often it is aborted."""
    engine = engine_of(["a b c d e f g h i j k l m n"], [1, 1, 1])
    model = model_of(engine, 10)
    turn = None
    for _ in range(9):
        try:
            turn = await model.generate([{"role": "user", "content": "q"}])
            break
        except GenerationAborted:
            assert model.rid is None
    assert turn is not None
    assert turn.finish is FinishReason.LENGTH
    assert turn.tokens == model._record.generated == 10
    assert len(engine.rids) == 4


async def test_an_abort_before_the_first_token_queues_again() -> None:
    """Nothing was received, nothing changes, and the next request has a new rid."""
    engine = engine_of(["yes"], [0])
    model = model_of(engine)
    messages: list[Message] = [{"role": "user", "content": "q"}]
    with pytest.raises(GenerationAborted):
        await model.generate(messages)
    assert model._record.generated == 0
    assert (await model.generate(messages)).text == "yes"
    assert engine.requests[0] == engine.requests[1]
    assert engine.rids[0] != engine.rids[1]


async def test_a_turn_cut_by_length_is_closed_by_the_renderer() -> None:
    """The end of turn that was not sampled is rendered, with mask 0, before what follows."""
    model = model_of(engine_of(["one two three four", "done"]), 3)
    await converse(model, ["q", "r"])
    record = model._record
    assert record.response_mask[:4].tolist() == [1, 1, 1, 0]
    assert record.responses[3] == END


async def test_rewritten_history_is_a_counted_fork() -> None:
    """The record starts over from the new history, and what was lost is told."""
    model = model_of(engine_of(["first", "second", "third"]))
    messages = await converse(model, ["q", "r"])
    lost = model._record.generated
    del messages[1]
    messages.append({"role": "user", "content": "s"})
    turn = await model.generate(messages)
    assert (model.forks, model.forked_tokens) == (1, lost)
    assert turn.text == "second"
    assert model._record.prompts.tolist() == RENDERER.opening(messages)


async def test_other_messages_amid_an_open_turn_are_a_fork() -> None:
    """An aborted turn is not carried on for a conversation that it does not belong to."""
    model = model_of(engine_of(["one two three four five six"], [2]))
    with pytest.raises(GenerationAborted):
        await model.generate([{"role": "user", "content": "q"}])
    lost = model._record.generated
    assert lost
    other: list[Message] = [{"role": "user", "content": "other"}]
    turn = await model.generate(other)
    assert turn.text == "one two three four five six"
    assert (model.forks, model.forked_tokens) == (1, lost)
    assert model._record.prompts.tolist() == RENDERER.opening(other)


async def test_a_full_context_ends_the_episode() -> None:
    """A turn gets what room there is; without room for one more token it is ContextFull."""
    messages: list[Message] = [{"role": "user", "content": "q"}]
    room = len(RENDERER.opening(messages)) + 4
    model = model_of(engine_of(["a b c d e f", "x"], context_length=room))
    turn = await model.generate(messages)
    assert (turn.finish, turn.tokens) == (FinishReason.LENGTH, 4)
    messages += [{"role": "assistant", "content": turn.text}, {"role": "user", "content": "r"}]
    for _ in range(2):
        with pytest.raises(ContextFull, match=f"fill the context of {room}"):
            await model.generate(messages)


async def test_a_pickled_turn_goes_on_elsewhere() -> None:
    """An aborted turn continues in another process's model, on another engine, at once."""
    answers = ["one two three four five six", "seven"]
    calm = model_of(engine_of(answers))
    await converse(calm, ["q", "r"])
    model = model_of(engine_of(answers, [2]))
    with pytest.raises(GenerationAborted):
        await model.generate([{"role": "user", "content": "q"}])
    copy = pickle.loads(pickle.dumps(model))
    with pytest.raises(RuntimeError, match="bind"):
        await copy.generate([{"role": "user", "content": "q"}])
    engine = engine_of(answers)
    access = EngineAccess(engine=engine, renderer=RENDERER, rids=RidFactory())
    copy.bind(access, attempt=1)
    await converse(copy, ["q", "r"])
    assert_same(copy._record, calm._record)
    assert copy._record is not model._record


async def test_rids_are_not_reused_within_an_attempt() -> None:
    """Binding again to the same attempt counts on."""
    engine = engine_of(["a", "b"])
    model = model_of(engine)
    access = model._access
    messages = await converse(model, ["q"])
    assert access is not None
    model.bind(access, attempt=0)
    await model.generate([*messages, {"role": "user", "content": "r"}])
    assert len(set(engine.rids)) == 2


async def test_a_dead_engine_loses_nothing() -> None:
    """After an engine's death the turn goes on, on another, from the tokens it had."""
    answers = ["one two three four five six"]
    calm = model_of(engine_of(answers))
    await converse(calm, ["q"])
    engine = engine_of(answers)
    model = model_of(engine)
    messages: list[Message] = [{"role": "user", "content": "q"}]
    async with asyncio.TaskGroup() as group:

        async def dies() -> None:
            with pytest.raises(EngineDied):
                await model.generate(messages)

        group.create_task(dies())
        for _ in range(5):
            await asyncio.sleep(0)
        await engine.close()
    assert 0 < model._record.generated < calm._record.generated
    model.bind(
        EngineAccess(engine=engine_of(answers), renderer=RENDERER, rids=RidFactory()), attempt=1
    )
    await model.generate(messages)
    assert_same(model._record, calm._record)
