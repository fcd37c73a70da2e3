"""TokenModel: one history for the agent and the engine, exact to the token."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import numpy as np
import pytest
from agent_fakes import (
    END,
    SUBMIT,
    ByteEngine,
    ByteRenderer,
    Shell,
    comparable,
    new_sample,
    play,
    token_model,
    turn,
)
from pydantic import ValidationError

from agentflow.swe.agent.action_level import ActionLevelMiniSWEAgent
from agentflow.swe.agent.library import DefaultAgent, FormatError, LocalEnvironment
from agentflow.swe.agent.mini import MiniSWEAgent
from agentflow.swe.agent.token_model import ContextExceeded, TokenModel, TokenModelConfig
from agentflow.types import Cause, SWERolloutResult

if TYPE_CHECKING:
    from pathlib import Path

TURNS = ["no block", turn("echo hi"), turn("ls", "pwd"), turn("echo é"), turn(f"{SUBMIT}; echo x")]
CONFIG = {"system_template": "s", "instance_template": "{{ task }}", "step_limit": 9}


def test_the_unmodified_library_runs_on_it_and_our_agent_agrees(tmp_path: Path) -> None:
    """DefaultAgent.run and our half-steps build the same messages and the same tokens."""
    theirs = token_model(ByteEngine(TURNS))
    library = DefaultAgent(theirs, LocalEnvironment(cwd=str(tmp_path)), **CONFIG)
    library.run("mend it")

    ours = token_model(ByteEngine(TURNS))
    agent = ActionLevelMiniSWEAgent(ours, Shell(tmp_path), **CONFIG)
    agent.extra_template_vars["task"] = "mend it"
    asyncio.run(play(agent, Shell(tmp_path)))

    assert comparable(agent.messages) == comparable(library.messages)
    assert (agent.n_calls, agent.cost) == (library.n_calls, library.cost) == (5, 0.0)
    assert np.array_equal(ours.turns._record.ids, theirs.turns._record.ids)
    assert library.messages[-1]["extra"]["submission"] == "x\n"


async def test_a_malformed_turn_stays_in_the_history(tmp_path: Path) -> None:
    """The record is the opening, then each turn and each answer once: it forks nowhere."""
    sample = new_sample(ByteEngine(TURNS))
    assert sample.model is not None
    agent = MiniSWEAgent(TokenModel(sample.model), Shell(tmp_path), **CONFIG)
    agent.extra_template_vars["task"] = "t"

    await agent.run_episode(Shell(tmp_path))

    renderer = ByteRenderer()
    expected = renderer.opening(agent.messages[:2])
    for message in agent.messages[2:-1]:
        if message["role"] == "assistant":
            expected += [*message["content"].encode(), END]
        else:
            expected += renderer.after_turn([message], ended=True)
    assert sample.record.ids.tolist() == expected
    assert sample.model.forks == 0
    assert [m["role"] for m in agent.messages[2:5]] == ["assistant", "user", "assistant"]


async def test_a_malformed_turn_is_charged_by_its_first_message() -> None:
    """The error carries the assistant's turn, then the answer; the first has the cost."""
    model = token_model(ByteEngine(["none"]))
    model.config = TokenModelConfig(cost_per_call=0.25)

    with pytest.raises(FormatError) as caught:
        await model.aquery([{"role": "user", "content": "go"}])

    assistant, answer = caught.value.messages
    assert (assistant["role"], assistant["content"]) == ("assistant", "none")
    assert assistant["extra"]["cost"] == 0.25
    assert assistant["extra"]["actions"] == []
    assert answer["role"] == "user"
    assert answer["extra"] == {
        "interrupt_type": "FormatError",
        "n_actions": 0,
        "model_response": "none",
    }


async def test_a_turn_that_was_cut_off_is_told_so() -> None:
    """A turn at its token budget gets the answer about its length."""
    model = token_model(ByteEngine([turn("ls")]), max_new_tokens=12)

    with pytest.raises(FormatError) as caught:
        await model.aquery([{"role": "user", "content": "go"}])

    assert "limit on its length" in caught.value.messages[1]["content"]
    assert caught.value.messages[0]["extra"]["finish_reason"] == "length"


async def test_a_full_context_ends_the_episode_as_a_limit(tmp_path: Path) -> None:
    """With no room for a token the agent leaves with EXCEED and the cause CONTEXT_FULL."""
    engine = ByteEngine([turn("seq 1 200"), turn("ls")], context_length=300)
    sample = new_sample(engine)
    assert sample.model is not None
    agent = ActionLevelMiniSWEAgent(TokenModel(sample.model), Shell(tmp_path), **CONFIG)
    agent.extra_template_vars["task"] = "t"

    await play(agent, Shell(tmp_path))

    assert agent.result is SWERolloutResult.EXCEED
    assert agent.ending is not None
    assert agent.ending.cause is Cause.CONTEXT_FULL
    assert agent.messages[-1]["extra"]["exit_status"] == "ContextFull"


async def test_query_refuses_to_block_a_running_loop() -> None:
    """The synchronous query names what to await instead."""
    with pytest.raises(RuntimeError, match="await aquery instead"):
        token_model(ByteEngine(["x"])).query([])


async def test_query_runs_on_the_loop_of_the_engine() -> None:
    """Given a loop, a query from another thread is generated on that loop."""
    seen: list[threading.Thread] = []

    class Watched(ByteEngine):
        async def info(self):  # noqa: ANN202
            seen.append(threading.current_thread())
            return await super().info()

    loop = asyncio.get_running_loop()
    turns = token_model(Watched([turn("ls")])).turns
    model = TokenModel(turns, loop=loop)

    message = await asyncio.to_thread(model.query, [{"role": "user", "content": "go"}])

    assert message["extra"]["actions"] == [{"command": "ls"}]
    assert seen == [threading.current_thread()]


def test_no_room_raises_a_limit_of_the_library() -> None:
    """The library itself ends a run on a full context, since it is one of its limits."""
    model = token_model(ByteEngine([], context_length=3))

    with pytest.raises(ContextExceeded):
        model.query([{"role": "user", "content": "longer than three"}])


@pytest.mark.parametrize("regex", ["(", "(a)(b)"])
def test_an_unusable_action_regex_is_refused(regex: str) -> None:
    """A pattern that does not compile, or has two groups, is a configuration error."""
    with pytest.raises(ValidationError, match="action_regex"):
        TokenModelConfig(action_regex=regex)


def test_images_are_taken_out_of_observations_where_configured() -> None:
    """`multimodal_regex` splits an observation as the library does."""
    pattern = r"(?s)<T><K>(.+?)</K>(.+?)</T>"
    model = token_model(ByteEngine([]))
    model.config = TokenModelConfig(
        multimodal_regex=pattern, observation_template="{{ output.output }}"
    )

    [message] = model.format_observation_messages({}, [{"output": "a<T><K>image_url</K>u</T>"}])

    assert message["content"][0] == {"type": "text", "text": "a"}
    assert message["content"][1] == {"type": "image_url", "image_url": {"url": "u"}}
