"""Builders, configuration, outcomes, clocks and the optional import."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from agent_fakes import (
    SUBMIT,
    ByteEngine,
    ByteRenderer,
    Shell,
    TextModel,
    new_sample,
    play,
    token_model,
    turn,
)

from agentflow.errors import ConfigError
from agentflow.protocols import ActionLevelAgent, Agent
from agentflow.swe.agent import templates
from agentflow.swe.agent.action_level import (
    ActionLevelMiniSWEAgent,
    ActionLevelMiniSWEAgentBuilder,
)
from agentflow.swe.agent.environments import ContainerView
from agentflow.swe.agent.library import Submitted
from agentflow.swe.agent.mini import MiniSWEAgent, MiniSWEAgentBuilder
from agentflow.types import Cause, CommandResult, SWERolloutResult

if TYPE_CHECKING:
    from pathlib import Path

PLAIN = {"system_template": "s", "instance_template": "i", "cost_limit": 0}


def test_built_agents_work_on_their_sample() -> None:
    """Messages are the sample's own list; task and workdir are in the default prompt."""
    sample = new_sample(ByteEngine([]), problem="It rains {{in}}.")
    agent = MiniSWEAgentBuilder({"name": "minisweagent"}).build(sample)

    agent.open_conversation()
    agent.open_conversation()

    assert agent.messages is sample.messages
    assert [m["role"] for m in sample.messages] == ["system", "user"]
    assert "It rains {{in}}." in sample.messages[1]["content"]
    assert "/testbed" in sample.messages[1]["content"]
    assert isinstance(agent, Agent)
    assert not isinstance(agent, ActionLevelAgent)


async def test_worked_examples_are_turns_that_came_before(tmp_path: Path) -> None:
    """They stand behind the system message, in the prompt of every turn, and are trained on never.

    Each episode has its own, and they are told from its turns.
    """
    examples = [{"user": "u1", "assistant": turn("ls")}, {"user": "u2", "assistant": turn("cat a")}]
    builder = MiniSWEAgentBuilder({**PLAIN, "examples": examples})
    samples = [new_sample(ByteEngine([turn("pwd"), turn(SUBMIT)])) for _ in range(2)]
    agents = [builder.build(sample) for sample in samples]

    await agents[0].run_episode(Shell(tmp_path))

    contents = ["s", "u1", turn("ls"), "u2", turn("cat a"), "i"]
    opening = samples[0].messages[: len(contents)]
    assert [m["content"] for m in opening] == contents
    assert [m["role"] for m in opening] == ["system", *["user", "assistant"] * 2, "user"]
    assert [m.get("extra", {}).get("example", False) for m in opening] == [
        False,
        *[True] * 4,
        False,
    ]
    assert samples[0].record.prompts.tolist() == ByteRenderer().opening(opening)
    assert samples[0].model is not None
    assert samples[0].model.forks == 0
    agents[1].open_conversation()
    assert all(a is not b for a, b in zip(opening, samples[1].messages, strict=True))


@pytest.mark.parametrize(
    ("example", "said"),
    [
        ({"user": "u"}, "examples.0.assistant: Field required"),
        ({"user": "u", "assistant": "a", "system": "s"}, "examples.0.system: Extra inputs"),
    ],
)
def test_half_an_example_is_refused(example: dict[str, str], said: str) -> None:
    """A question without an answer shows nothing."""
    with pytest.raises(ConfigError) as caught:
        MiniSWEAgentBuilder({"examples": [example]})
    assert said in str(caught.value)


def test_the_action_level_builder_builds_action_level_agents() -> None:
    """What it builds can be driven by steps, and by itself."""
    agent = ActionLevelMiniSWEAgentBuilder({}).build(new_sample(ByteEngine([])))

    assert isinstance(agent, ActionLevelAgent)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"step_limt": 3}, "step_limt: Extra inputs are not permitted (got 3)"),
        ({"step_limit": "many"}, "step_limit: Input should be a valid integer"),
        ({"action_regex": "("}, "action_regex: Value error, is not a regular expression"),
        ({"system_template": "{% if %}"}, "system_template: Value error, line 1 of the template"),
        ({"output_path": "{who}.json"}, "output_path: Value error, can hold {instance_id}"),
    ],
)
def test_a_wrong_section_is_one_clear_error(section: dict[str, Any], said: str) -> None:
    """The key, what is wrong with it and the value stand in the message."""
    with pytest.raises(ConfigError) as caught:
        MiniSWEAgentBuilder(section)

    assert said in str(caught.value)


def test_an_agent_needs_the_samples_model() -> None:
    """Building before the model is set says what is missing."""
    sample = new_sample(ByteEngine([]))
    sample.model = None

    with pytest.raises(ConfigError, match=r"sample\.model must be set"):
        MiniSWEAgentBuilder({}).build(sample)


async def test_trajectories_are_saved_where_the_path_says(tmp_path: Path) -> None:
    """Each episode writes the library's format to its own file, with its configuration."""
    sample = new_sample(ByteEngine([turn("ls"), turn(f"{SUBMIT}; echo p")]))
    path = tmp_path / "{instance_id}" / "{episode}.traj.json"
    agent = MiniSWEAgentBuilder({"output_path": str(path), "step_limit": 7}).build(sample)

    result = await agent.run_episode(Shell(tmp_path))

    saved = json.loads((tmp_path / "i_1" / f"{sample.episode.key}.traj.json").read_text())
    assert result is SWERolloutResult.SUBMIT
    assert saved["trajectory_format"] == "mini-swe-agent-1.1"
    assert saved["info"]["exit_status"] == "Submitted"
    assert saved["info"]["submission"] == sample.m.rollout.submission == "p\n"
    assert saved["info"]["config"]["agent"]["step_limit"] == 7
    assert saved["messages"] == sample.messages


def _aged(agent: Any) -> str:
    agent._start_time -= 9
    return turn("ls")


@pytest.mark.parametrize(
    ("script", "limits", "result", "cause"),
    [
        ([turn(SUBMIT)], {}, SWERolloutResult.SUBMIT, Cause.SUBMITTED),
        ([turn("ls")], {"step_limit": 1}, SWERolloutResult.EXCEED, Cause.STEP_LIMIT),
        ([turn("ls")], {"cost_limit": 1.0}, SWERolloutResult.EXCEED, Cause.COST_LIMIT),
        ([_aged], {"wall_time_limit_seconds": 8}, SWERolloutResult.EXCEED, Cause.TIME_LIMIT),
        (["x"] * 3, {}, SWERolloutResult.FAILURE, Cause.FORMAT_ERRORS),
    ],
)
async def test_every_way_out_has_its_result_and_cause(
    *,
    tmp_path: Path,
    script: list[Any],
    limits: dict[str, Any],
    result: SWERolloutResult,
    cause: Cause,
) -> None:
    """How and why the agent left is told by the agent and written into its sample."""
    model = TextModel(script)
    agent = ActionLevelMiniSWEAgent(model, Shell(tmp_path), **{**PLAIN, **limits})
    model.agent = agent
    sample = new_sample(ByteEngine([]))
    agent.adopt(sample)

    await play(agent, Shell(tmp_path))

    rollout = sample.m.rollout
    assert agent.result is rollout.result is result
    assert rollout.ending is agent.ending
    assert rollout.ending is not None
    assert rollout.ending.cause is cause


def test_time_is_the_loops_and_only_that_of_the_steps(tmp_path: Path) -> None:
    """On a loop whose clock jumps the limit follows it; waiting between steps is free."""
    loop = asyncio.new_event_loop()
    now = 1000.0
    loop.time = lambda: now  # type: ignore[method-assign]  # a loop's clock is this method

    class Takes40s(TextModel):
        async def aquery(self, messages: Any) -> Any:
            nonlocal now
            now += 40
            return self.query(messages)

    observation = {"observation_template": "{{ elapsed_seconds }}"}
    model = Takes40s([turn("ls")] * 9, **observation)
    agent = ActionLevelMiniSWEAgent(model, None, wall_time_limit_seconds=100, **PLAIN)
    told = []
    with contextlib.closing(loop):
        while agent.result is None:
            _, action = loop.run_until_complete(agent.generation_step())
            now += 1000  # waits for a slot
            if action is not None:
                loop.run_until_complete(agent.env_step(Shell(tmp_path), action))
                told.append(agent.messages[-1]["content"])

    assert told == ["40", "80", "120"]
    assert agent.messages[-1]["extra"]["exit_status"] == "TimeExceeded"


async def test_each_template_is_compiled_once(tmp_path: Path) -> None:
    """Two episodes with 12 turns between them compile four templates, one each."""
    compiles: list[str] = []

    def watch(frame: Any, event: str, _arg: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_name == "compile" and "jinja2" in code.co_filename:
            compiles.append(str(frame.f_locals["source"]))

    templates.compiled.cache_clear()
    turns = [turn("ls"), "bad", turn("ls"), "bad", turn("ls"), turn(SUBMIT)]
    sys.setprofile(watch)
    try:
        for _ in range(2):
            agent = MiniSWEAgentBuilder({}).build(new_sample(ByteEngine(turns)))
            await agent.run_episode(Shell(tmp_path))
    finally:
        sys.setprofile(None)

    assert len(compiles) == len(set(compiles)) == 4


async def test_the_specifications_names_are_there(tmp_path: Path) -> None:
    """render_template, parse_action, execute_action and has_finished do what they say."""
    agent = MiniSWEAgent(token_model(ByteEngine([])), Shell(tmp_path), **PLAIN)
    agent.extra_template_vars["task"] = "T"

    assert agent.render_template("{{ task }}{{ more }}{{ n_model_calls }}", more=1) == "T10"
    assert agent.parse_action({"extra": {"actions": [{"command": "a"}]}}) == "a"
    assert agent.parse_action({"extra": {"actions": []}}) is None
    assert (await agent.execute_action({"command": "echo x"}))["output"] == "x\n"
    submit = b"COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\r\np"
    agent.has_finished(CommandResult(exit_code=1, output=submit))
    with pytest.raises(Submitted) as caught:
        agent.has_finished(CommandResult(exit_code=0, output=submit))
    assert caught.value.messages[0]["content"] == "p"


def test_a_container_cannot_be_run_synchronously(tmp_path: Path) -> None:
    """The library's run on a ContainerEnv says which methods to await instead."""
    agent = MiniSWEAgent(TextModel([turn("ls")]), Shell(tmp_path), **PLAIN)

    with pytest.raises(RuntimeError, match="await run_episode"):
        agent.run("t")


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (
            CommandResult(exit_code=-1, output=b"", timed_out=True, duration_s=2.1),
            "after 2 seconds",
        ),
        (CommandResult(exit_code=137, output=b"", out_of_memory=True), "ran out of memory"),
    ],
)
def test_what_killed_a_command_is_told(result: CommandResult, said: str) -> None:
    """A time-out without a known limit tells its duration; lost memory is named."""

    class Nameless:
        async def execute(self, command: str) -> CommandResult:
            raise AssertionError

    output = ContainerView(Nameless()).output_of(result, "make")  # type: ignore[arg-type]

    assert said in output["exception_info"]


def test_output_that_was_cut_is_shown_as_head_and_tail() -> None:
    """Where the environment dropped bytes the default observation says so, however short it is."""
    model = token_model(ByteEngine([]))
    output = {"output": "abc", "returncode": 0, "exception_info": "", "dropped_bytes": 5}

    [message] = model.format_observation_messages({}, [output])

    assert "too long to show whole" in message["content"]


def _python(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = {"HOME": str(tmp_path), "PYTHONPATH": ":".join(p or "." for p in sys.path)}
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
def test_importing_the_agent_is_silent_and_leaves_no_file(tmp_path: Path) -> None:
    """Neither banner nor folder in the home directory comes with the library."""
    done = _python("import agentflow.swe.agent.mini", tmp_path)

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_one_error_says_how_to_get_it(tmp_path: Path) -> None:
    """Agentflow imports without it; its agent names the command that brings it."""
    code = (
        "import sys; sys.modules['minisweagent'] = None; import agentflow, agentflow.swe.agent\n"
        "import agentflow.swe.agent.mini"
    )

    done = _python(code, tmp_path)

    assert done.returncode == 1
    assert "pip install --no-deps 'mini-swe-agent>=2.4.6,<2.5'" in done.stderr.splitlines()[-1]


def test_an_agent_is_bounded_unless_told_otherwise() -> None:
    """The library's default knows no bound on turns; ours does, and 0 takes it away."""
    assert MiniSWEAgentBuilder({}).config.step_limit == 100
    assert MiniSWEAgentBuilder({"step_limit": 0}).config.step_limit == 0
