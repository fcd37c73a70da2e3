"""Half-steps agree with recorded runs of the unmodified library, message for message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from agent_fakes import Shell, TextModel, comparable, play

from agentflow.swe.agent.action_level import ActionLevelMiniSWEAgent
from agentflow.swe.agent.library import LocalEnvironment

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def _load(path: Path) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return case


def _container(folder: Path, timeout: int) -> Any:
    return Shell(folder, timeout_s=timeout)


def _library(folder: Path, timeout: int) -> Any:
    return LocalEnvironment(cwd=str(folder), timeout=timeout)


@pytest.mark.parametrize("make_env", [_container, _library])
@pytest.mark.parametrize("golden", GOLDEN, ids=lambda path: path.stem)
async def test_half_steps_repeat_a_recorded_run(
    golden: Path, make_env: Callable[[Path, int], Any], tmp_path: Path
) -> None:
    """The same script gives the recorded messages, calls and cost, in both kinds of environment."""
    case = _load(golden)
    env = make_env(tmp_path, case["env"]["timeout"])
    model = TextModel(case["script"], **case["model"])
    agent = ActionLevelMiniSWEAgent(model, env, **case["agent"])
    agent.extra_template_vars["task"] = f"T-{case['scenario']}"

    await play(agent, env)

    expected = case["expected"]
    assert comparable(agent.messages) == expected["messages"]
    assert (agent.n_calls, agent.cost) == (expected["n_calls"], expected["cost"])


def test_all_scenarios_are_recorded() -> None:
    """Nine scenarios stand in the golden folder, so that none is skipped silently."""
    assert len(GOLDEN) == 9
