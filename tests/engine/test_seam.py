"""Stop strings at and across the seam of an aborted turn."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_turns import FOLDER, assert_same, converse, engine_of, model_of

from agentflow.engine.seam import StopStrings
from agentflow.errors import GenerationAborted
from agentflow.types import FinishReason, GenerationRequest, GenerationResult, ModelInfo

if TYPE_CHECKING:
    from agentflow.protocols import TokenSink


@pytest.mark.parametrize(
    ("text", "met", "begun"),
    [
        ("", None, False),
        ("run it\nOBS", None, True),
        ("run it\nOBSERVATION", "OBSERVATION", False),
        ("OBSERVATIONx", "OBSERVATION", False),
        ("an O", None, True),
        ("an OB.", None, False),
        ("half a character \ufffd", None, True),
    ],
)
def test_met_and_begun(text: str, met: str | None, *, begun: bool) -> None:
    """Whole stop strings are met anywhere, beginnings count at the end of the text only."""
    stops = StopStrings(("OBSERVATION", "中文"))
    assert stops.met(text) == met
    assert stops.begun(text) is begun


def test_the_first_to_be_completed_is_met() -> None:
    """Of two stop strings the one that ends earlier stopped the turn."""
    assert StopStrings(("abcd", "bc")).met("xabcd") == "bc"


pieces = st.lists(st.sampled_from(["go ", "OBS", "ERVE", "observe", "中", "文", "\n"]), max_size=14)


@settings(max_examples=60)
@given(
    answer=pieces.map("".join),
    aborts=st.lists(st.integers(0, 3), max_size=8),
    chunk=st.integers(1, 3),
    budget=st.sampled_from([6, 2048]),
)
def test_stop_strings_span_seams(answer: str, aborts: list[int], chunk: int, budget: int) -> None:
    """Aborted anywhere, a turn ends at the very token at which the undisturbed one ends."""

    async def both() -> None:
        calm = engine_of([answer], chunk_tokens=chunk)
        flaky = engine_of([answer], aborts, chunk_tokens=chunk)
        stop = ("OBSERVE", "中文")
        undisturbed = model_of(calm, budget, stop=stop)
        disturbed = model_of(flaky, budget, stop=stop)
        assert await converse(undisturbed, ["hi"]) == await converse(disturbed, ["hi"])
        assert_same(undisturbed._record, disturbed._record)
        assert len(set(flaky.rids)) == len(flaky.rids)

    asyncio.run(both())


@pytest.mark.parametrize(("answer", "text"), [("go OBSERVE on", "go OBSERVE"), ("中文字", "中文")])
def test_a_stop_string_is_met_over_a_seam_at_each_of_its_tokens(answer: str, text: str) -> None:
    """Aborted behind each token in turn, also twice, nothing is generated past it."""
    length = len(FOLDER.tokenizer.encode(text))
    assert length > 2
    for first in range(1, length):
        for second in (0, 1):
            engine = engine_of([answer], [first, second], chunk_tokens=1)
            model = model_of(engine, stop=("OBSERVE", "中文"))
            _, turn = asyncio.run(converse(model, ["hi"]))
            assert turn["content"] == text
            assert len(model._record.responses) == length


class Overrun:
    """An engine whose first request is aborted with the token that completes a stop string."""

    def __init__(self) -> None:
        self.requests = 0

    async def info(self) -> ModelInfo:
        """Describe it."""
        return ModelInfo(name="overrun", vocab_size=FOLDER.tokenizer.vocab_size, context_length=99)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Say the stop string, and be aborted before noticing."""
        self.requests += 1
        ids = FOLDER.tokenizer.encode("go OBSERVE")
        sink.append(ids, [0.0] * len(ids), 0)
        raise GenerationAborted("Aborted")

    async def abort(self, rid: str) -> None:
        """Nothing is in flight."""

    async def close(self) -> None:
        """Nothing to close."""


async def test_a_stop_that_came_with_the_abort_ends_the_turn() -> None:
    """An abort often brings one token more; if that completed a stop, nothing is sent after it."""
    engine = Overrun()
    model = model_of(engine, stop=("OBSERVE",))
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises(GenerationAborted):
        await model.generate(messages)
    turn = await model.generate(messages)
    assert (turn.finish, turn.text) == (FinishReason.STOP, "go OBSERVE")
    assert engine.requests == 1
