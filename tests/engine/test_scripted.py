"""What a ScriptedEngine does beyond the contract of every engine."""

from __future__ import annotations

import asyncio
import selectors
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from chat_shapes import make_folder

from agentflow.engine.model_folder import bundled_model_folder, load_model_folder
from agentflow.engine.policy_script import PolicyScript
from agentflow.engine.rids import RidFactory
from agentflow.engine.scripted import ScriptedEngine, ScriptedSettings
from agentflow.engine.scripted_spec import scripted_engine
from agentflow.engine.template_renderer import TemplateRenderer
from agentflow.engine.token_record import TokenRecord
from agentflow.errors import (
    ConfigError,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    GenerationAborted,
)
from agentflow.types import EpisodeId, FinishReason, GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from pathlib import Path

    from agentflow.engine.conversation import Conversation

FOLDER = bundled_model_folder()
RENDERER = TemplateRenderer(FOLDER)
RIDS = RidFactory("0" * 12)
TASK = {"instance_id": "t", "problem_statement": "It fails.", "patch": "diff --git a b\n"}


class Parrot:
    """A policy that says what it can see."""

    name = "parrot"

    def answer(self, conversation: Conversation) -> str:
        """Tell turn, episode and the latest text."""
        return f"turn {conversation.turn} of {conversation.episode}: {conversation.latest}"


def engine_of(**settings: Any) -> ScriptedEngine:
    """Make an engine that plays the parrot."""
    script = PolicyScript(Parrot(), renderer=RENDERER, tokenizer=FOLDER.tokenizer)
    return ScriptedEngine(script, tokenizer=FOLDER.tokenizer, settings=ScriptedSettings(**settings))


def request(text: str = "hello", n: int = 0, **sampling: Any) -> GenerationRequest:
    """Ask the parrot."""
    return GenerationRequest(
        rid=RIDS.make(EpisodeId(uid="u"), attempt=0, generation=n),
        input_ids=np.asarray(RENDERER.opening([{"role": "user", "content": text}]), np.int32),
        sampling=replace(SamplingParams(max_new_tokens=200), **sampling),
    )


async def test_a_policy_sees_turn_episode_and_text() -> None:
    """What reaches the policy is read from the request alone."""
    engine = engine_of()
    record = TokenRecord()
    asked = request("say <|im_end|> please")
    record.extend_rendered(asked.input_ids.tolist())
    result = await engine.generate(asked, record)
    text = FOLDER.tokenizer.decode(record.responses.tolist())
    key = EpisodeId(uid="u").key
    assert text == f"turn 0 of {key}: user\nsay <|im_end|> please\nassistant\n"
    assert result.finish is FinishReason.STOP
    assert result.matched == RENDERER.end_of_turn_ids[0]
    assert record.ids[-1] == result.matched
    record.extend_rendered(RENDERER.after_turn([{"role": "user", "content": "2"}], ended=True))
    start = len(record)
    await engine.generate(replace(asked, rid="other", input_ids=record.ids), record)
    assert FOLDER.tokenizer.decode(record.ids[start:].tolist()).startswith("turn 1 of : turn 0 of")


async def test_stop_strings_end_a_turn() -> None:
    """The earliest of several stop strings ends it, with the token that completes it."""
    record = TokenRecord()
    result = await engine_of().generate(request(stop=("say no", "of", "turn 0 of")), record)
    text = FOLDER.tokenizer.decode(record.ids.tolist())
    assert text == "turn 0 of"
    assert (result.finish, result.matched) == (FinishReason.STOP, "of")


async def test_logprobs_and_versions() -> None:
    """Log-probs are exact in float32 and vary; each token carries the version set at its time."""
    engine = engine_of(chunk_tokens=4)
    engine.weight_version = 3
    record = TokenRecord()
    await engine.generate(request(), record)
    values = record.rollout_log_prob.tolist()
    assert len(set(values)) > len(values) // 2
    assert all(-2 < value <= 0 for value in values)
    assert set(record.weight_versions.tolist()) == {3}
    assert (await engine.info()).weight_version == 3


async def test_a_budget_must_be_positive() -> None:
    """Zero tokens is no generation."""
    with pytest.raises(EngineRejected, match="max_new_tokens 0"):
        await engine_of().generate(request(max_new_tokens=0), TokenRecord())


async def test_a_request_without_an_open_turn_is_refused() -> None:
    """Ids that no chat template made are named as such."""
    asked = replace(request(), input_ids=np.arange(5, 9, dtype=np.int32))
    with pytest.raises(EngineRejected, match="no turn of the assistant is open in its 4 ids"):
        await engine_of().generate(asked, TokenRecord())


async def test_an_abort_in_the_queue_loses_nothing_and_frees_the_place() -> None:
    """A queued request ends without a token; the one behind it still gets the slot."""
    engine = engine_of(max_concurrency=1, chunk_tokens=1)
    records = [TokenRecord() for _ in range(3)]
    aborted: list[int] = []

    async def run(n: int) -> None:
        try:
            await engine.generate(request(n=n), records[n])
        except GenerationAborted:
            aborted.append(n)

    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(run(n))
        await asyncio.sleep(0)
        assert engine.gauges() == {"running": 1.0, "waiting": 2.0}
        await engine.abort(request(n=1).rid)
    assert aborted == [1]
    assert [len(record) > 0 for record in records] == [True, False, True]
    assert engine.gauges() == {"running": 0.0, "waiting": 0.0}


async def test_cancelling_a_queued_request_frees_its_place() -> None:
    """A slot handed over in the instant of the cancellation goes on to the next."""
    engine = engine_of(max_concurrency=1)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(engine.generate(request(n=n), TokenRecord())) for n in range(4)]
        tasks[0].add_done_callback(lambda _: tasks[1].cancel())
        await asyncio.sleep(0)
        tasks[2].cancel()
    assert [task.cancelled() for task in tasks] == [False, True, True, False]
    assert engine.gauges() == {"running": 0.0, "waiting": 0.0}


async def test_closing_ends_what_runs() -> None:
    """Requests in flight see the engine die, later ones find it closed."""
    engine = engine_of(tokens_per_s=0.001)

    async def run() -> None:
        with pytest.raises(EngineDied, match="closed"):
            await engine.generate(request(), TokenRecord())

    async with asyncio.TaskGroup() as group:
        group.create_task(run())
        await asyncio.sleep(0)
        await engine.close()
    with pytest.raises(EngineUnreachable):
        await engine.generate(request(n=1), TokenRecord())
    with pytest.raises(EngineUnreachable):
        await engine.info()


class JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, moves the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Take no time."""
        self.now += timeout or 0.0
        return super().select(0)


def in_virtual_time(main: Coroutine[Any, Any, float]) -> float:
    """Run `main` on a loop whose clock jumps."""
    selector = JumpingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        return runner.run(main)


def test_pace() -> None:
    """A request of n tokens takes n / tokens_per_s, and an abort ends the wait at once."""

    async def timed() -> float:
        engine = engine_of(tokens_per_s=10.0, chunk_tokens=5)
        loop = asyncio.get_running_loop()
        await engine.generate(request(max_new_tokens=20), TokenRecord())
        assert loop.time() == pytest.approx(2.0)
        record = TokenRecord()
        asked = request(n=1)
        async with asyncio.TaskGroup() as group:
            loop.call_later(0.75, lambda: group.create_task(engine.abort(asked.rid)))
            with pytest.raises(GenerationAborted):
                await engine.generate(asked, record)
        assert len(record) == 5
        return loop.time()

    assert in_virtual_time(timed()) == pytest.approx(2.75)


@pytest.mark.parametrize(
    "field", ["context_length", "chunk_tokens", "max_concurrency", "tokens_per_s"]
)
def test_settings_must_be_positive(field: str) -> None:
    """The error names the field and the value."""
    with pytest.raises(ConfigError, match=f"{field} 0"):
        ScriptedSettings(**{field: 0})


# --- specifications ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ("scripted:oracle", "scripted:oracle"),
        ("scripted:noop", "scripted:noop"),
        ("scripted:noisy", "scripted:noisy:0"),
        ("scripted:noisy:7", "scripted:noisy:7"),
        ("scripted:tamper", "scripted:tamper"),
        ("scripted:tamper:hooks", "scripted:tamper:hooks"),
    ],
)
async def test_a_specification_makes_an_engine(spec: str, name: str) -> None:
    """Its description has the policy's name."""
    assert (await scripted_engine(spec, [TASK]).info()).name == name


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("scripted:orcale", r"did you mean scripted:oracle\?"),
        ("scripted:nopo", r"did you mean scripted:noop\?"),
        ("scripted:", "neither a policy nor"),
        ("scripted:runs/none", "neither a policy nor the directory"),
        ("scripted:noisy:x", "seed 'x' must be a number"),
        ("scripted:noisy:", "seed '' must be a number"),
        ("scripted:tamper:all", "'all' must be one of hooks, shadow, tests, code, machine"),
    ],
)
def test_a_wrong_specification_is_one_error(spec: str, message: str) -> None:
    """The error says what is wrong and what there is."""
    with pytest.raises(ConfigError, match=message):
        scripted_engine(spec, [TASK])


def test_a_template_without_a_marker_cannot_be_played(tmp_path: Path) -> None:
    """Where nothing unforgeable stands before an answer, turns cannot be found."""
    template = (
        "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>"
        "{% else %}:{% endif %}{% endfor %}"
    )
    folder = load_model_folder(make_folder(tmp_path, template))
    with pytest.raises(ConfigError, match="use the bundled tokenizer"):
        scripted_engine("scripted:noop", [], folder=folder)
