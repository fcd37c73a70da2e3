"""What the small model of `agentflow demo-llm` is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent_fakes import ByteEngine, token_model

from agentflow.swe.agent.mini import MiniSWEAgentBuilder
from agentflow.swe.agent.templates import render
from agentflow.swe.agent.token_model import TokenModel
from executors.cli.demo_llm import settings

if TYPE_CHECKING:
    from pathlib import Path


def test_two_worked_examples_stand_before_the_issue(tmp_path: Path) -> None:
    """In the very words that the agent uses for issues and output, in the format that it reads."""
    whole = settings(url="http://127.0.0.1:1", model=tmp_path, out=tmp_path / "run", limit=None)
    config = MiniSWEAgentBuilder(whole.flow.agent).config
    model = TokenModel(token_model(ByteEngine([])).turns, config=config.token_model_config())
    issues = 0
    for example in config.examples:
        assert len(model.find_actions(example.assistant)) == 1
        if example.user.startswith("Issue: "):
            issues += 1
            task = example.user.removeprefix("Issue: ").splitlines()[0]
            said = render(config.instance_template, {"task": task, "cwd": "/testbed"})
        else:
            lines = example.user.splitlines(keepends=True)
            output = "".join(lines[2:]).removesuffix("</output>")
            (told,) = model.format_observation_messages({}, [{"output": output, "returncode": 0}])
            said = told["content"]
        assert example.user == said
    assert issues == 2
