"""Half-steps agree with the installed library on scripts that nobody wrote down."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_fakes import (
    SUBMIT,
    Answers,
    ContainerAnswers,
    Shell,
    TextModel,
    comparable,
    play,
    run_library,
    turn,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from minisweagent.exceptions import UserInterruption

from agentflow.swe.agent.action_level import ActionLevelMiniSWEAgent
from agentflow.swe.agent.library import (
    DefaultAgent,
    FormatError,
    InterruptAgentFlow,
    LocalEnvironment,
    Submitted,
)
from agentflow.types import CommandResult

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG = {
    "system_template": "{{ n_model_calls }} {{ model_cost }} {{ elapsed_seconds }} {{ cwd }}",
    "instance_template": "{{ task }} {{ step_limit }} {{ cost_limit }}",
}
OBSERVATION = (
    "{{ n_model_calls }}/{{ model_cost }}/{{ elapsed_seconds }}/{{ wall_time_limit_seconds }}"
    " {{ output.returncode }} {{ output.exception_info }} [{{ output.output }}]"
)

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def _asks(*commands: str, cost: float = 1.0) -> dict[str, Any]:
    """Return a message that asks for several actions, as tool-calling models do."""
    actions = [{"command": command, "id": n} for n, command in enumerate(commands)]
    extra = {"actions": actions, "cost": cost}
    return {"role": "assistant", "content": "calls", "extra": extra}


def _older(agent: Any) -> str:
    """Let five seconds pass while the model thinks."""
    agent._start_time -= 5
    return turn("ls")


def _exit() -> dict[str, Any]:
    extra = {"exit_status": "Gone", "submission": "x"}
    return {"role": "exit", "content": "bye", "extra": extra}


TURNS = st.one_of(
    st.just(turn("ls")),
    st.sampled_from(["no block", turn("ls", "pwd"), "", "```mswea_bash_command\n\n```"]),
    st.text(max_size=40).map(turn),
    st.lists(st.sampled_from(["a", "b", ""]), max_size=3).map(lambda found: _asks(*found)),
    st.sampled_from(["anyhow", "again"]).map(lambda content: {"role": "user", "content": content}),
    st.just(_older),
    st.builds(ValueError, st.just("broken")),
    st.builds(lambda: UserInterruption({"role": "user", "content": "wait"})),
    st.builds(lambda: InterruptAgentFlow(_exit())),
    st.builds(lambda: FormatError({"role": "user", "content": "eh?"})),
    st.builds(_exit),
)

OUTPUTS = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            b"",
            b"a\r\nb\rc\n",
            b"\xff\xfe",
            b"y" * 10_001,
            f"{SENTINEL}\n".encode(),
            f"\n\n \t{SENTINEL}  \r\npatch\r\n".encode(),
            f"x\n{SENTINEL}\n".encode(),
            SENTINEL.encode(),
        ]
    ),
)
RESULTS = st.one_of(
    st.builds(CommandResult, exit_code=st.sampled_from([0, 0, 0, 1, 137]), output=OUTPUTS),
    st.builds(CommandResult, exit_code=st.just(-1), output=OUTPUTS, timed_out=st.just(True)),
    st.builds(OSError, st.just("no such environment")),
    st.builds(lambda: Submitted({"role": "exit", "content": "s", "extra": {}})),
    st.builds(lambda: FormatError({"role": "user", "content": "odd"})),
)
LIMITS = st.fixed_dictionaries(
    {
        "step_limit": st.sampled_from([0, 0, 1, 3]),
        "cost_limit": st.sampled_from([0.0, 0.0, 2.0, 3.5]),
        "max_consecutive_format_errors": st.sampled_from([0, 1, 2, 3]),
        "wall_time_limit_seconds": st.sampled_from([0, 0, 4, 100]),
    }
)


def _facts(agent: DefaultAgent, raised: str | None, saved: Path) -> dict[str, Any]:
    trajectory = json.loads(saved.read_text(encoding="utf-8"))
    trajectory["messages"] = comparable(trajectory["messages"])
    for private in ("agent_type", "agent", "environment", "environment_type"):
        trajectory["info"]["config"].pop(private, None)
    return {
        "messages": comparable(agent.messages),
        "calls": agent.n_calls,
        "cost": agent.cost,
        "format_errors": agent.n_consecutive_format_errors,
        "raised": raised,
        "saved": trajectory,
    }


def _by_library(model: TextModel, env: Any, config: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "library" / "t.json"
        agent = DefaultAgent(model, env, output_path=saved, **config)
        model.agent = agent
        return _facts(agent, run_library(agent, "mend"), saved)


def _by_half_steps(model: TextModel, env: Any, config: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        saved = Path(folder) / "ours" / "t.json"
        agent = ActionLevelMiniSWEAgent(model, env, output_path=saved, **config)
        model.agent = agent
        agent.extra_template_vars["task"] = "mend"
        raised = None
        try:
            asyncio.run(play(agent, env))
        except (ValueError, OSError, IndexError, TypeError, KeyError) as error:
            raised = type(error).__name__
        return _facts(agent, raised, saved)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
@pytest.mark.slow
def test_scripts_of_all_kinds_agree(data: st.DataObject) -> None:
    """Limits, malformed turns, several actions, interrupts and exceptions end alike."""
    script: Sequence[Any] = data.draw(st.lists(TURNS, max_size=7))
    answers = data.draw(st.lists(RESULTS, min_size=12, max_size=12))
    limits = data.draw(LIMITS)
    config = CONFIG | limits

    def model() -> TextModel:
        return TextModel(script, observation_template=OBSERVATION)

    expected = _by_library(model(), Answers(answers), config)
    assert _by_half_steps(model(), Answers(answers), config) == expected
    assert _by_half_steps(model(), ContainerAnswers(answers), config) == expected


COMMANDS = st.sampled_from(
    [
        "echo hi; echo err >&2",
        "false",
        "exit 3",
        "true",
        r"printf 'a\r\nb\r\377\n'",
        "yes | head -c 20000",
        f"{SUBMIT} && cat nothing",
        "echo patch > p; echo",
        f"echo; {SUBMIT}; cat p 2>/dev/null",
    ]
)


@settings(max_examples=8)
@given(st.lists(COMMANDS, min_size=1, max_size=4), st.sampled_from([[], [SUBMIT]]))
def test_real_commands_agree(commands: list[str], last: list[str]) -> None:
    """Commands run by bash in our environment are told as the library tells its own."""
    script = [turn(command) for command in [*commands, *last]]
    config = {**CONFIG, "system_template": "s", "cost_limit": 0.0}
    with tempfile.TemporaryDirectory() as theirs, tempfile.TemporaryDirectory() as ours:
        expected = _by_library(TextModel(script), LocalEnvironment(cwd=theirs), config)
        found = _by_half_steps(TextModel(script), Shell(Path(ours)), config)
    assert found == expected


@pytest.mark.slow
def test_a_time_out_is_worded_alike(tmp_path: Path) -> None:
    """A time-out with output that is no UTF-8 gives the library's observation, digit by digit."""
    script = [turn(r"printf 'a\377\r\n'; sleep 20"), turn(SUBMIT)]
    config = {**CONFIG, "system_template": "s", "cost_limit": 0.0}
    env = LocalEnvironment(cwd=str(tmp_path), timeout=1)

    expected = _by_library(TextModel(script), env, config)

    assert _by_half_steps(TextModel(script), Shell(tmp_path, timeout_s=1), config) == expected


def test_a_template_that_names_an_unknown_variable_fails_alike() -> None:
    """An undefined variable in the first prompt is raised before anything is sent or saved."""
    config = {"system_template": "{{ nothing }}", "instance_template": ""}
    name = run_library(DefaultAgent(TextModel([]), Answers([]), **config), "t")
    agent = ActionLevelMiniSWEAgent(TextModel([]), Answers([]), **config)

    with pytest.raises(Exception, match="'nothing' is undefined") as caught:
        asyncio.run(agent.generation_step())

    assert type(caught.value).__name__ == name
    assert agent.messages == []


_OK = CommandResult(exit_code=0, output=b"")


@pytest.mark.parametrize(
    ("script", "limits"),
    [
        (["x", turn("ls"), "x", turn("ls"), "x", "x"], {"max_consecutive_format_errors": 2}),
        (["x", _asks(), "x", "x"], {"max_consecutive_format_errors": 2}),
        (["x"] * 6, {"max_consecutive_format_errors": 0}),
        (["x"] * 6, {"max_consecutive_format_errors": 0, "cost_limit": 3.5}),
        ([_asks("a", cost=0.5), turn("b"), turn("c")], {"cost_limit": 1.5}),
        ([_older, turn("ls")], {"wall_time_limit_seconds": 5}),
        ([_asks("a", "b"), _asks(), ValueError("broken")], {}),
    ],
)
def test_limits_and_counters_agree(script: list[Any], limits: dict[str, Any]) -> None:
    """Counters reset and limits bite at the same turn as in the library."""
    config = {**CONFIG, "cost_limit": 0.0, **limits}

    def model() -> TextModel:
        return TextModel(script, observation_template=OBSERVATION)

    expected = _by_library(model(), Answers([_OK] * 9), config)

    assert _by_half_steps(model(), ContainerAnswers([_OK] * 9), config) == expected
