"""Makes the golden runs: `python tests/agent/make_golden.py` drives the unmodified library.

Run it again when the pinned library changes, and read the difference.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from agent_fakes import SUBMIT, TextModel, comparable, run_library, turn

from agentflow.swe.agent.library import DefaultAgent, LocalEnvironment

FOLDER = Path(__file__).parent / "golden"

AGENT = {
    "system_template": "You repair things.",
    "instance_template": "Task: {{ task }} (step limit {{ step_limit }})",
    "cost_limit": 0.0,
}

SCENARIOS: dict[str, dict[str, Any]] = {
    "format_error_recovers": {
        "script": ["no block", turn("ls", "pwd"), turn("echo hi"), turn(f"{SUBMIT}; echo done")],
    },
    "format_error_repeated": {"script": ["bad 1", "bad 2", "bad 3", turn(SUBMIT)]},
    "huge_output": {
        "script": [
            turn("seq 1 3000"),
            turn("yes x | head -c 10000"),
            turn("yes x | head -c 10001"),
            turn(SUBMIT),
        ],
    },
    "non_utf8": {
        "script": [
            turn(r"printf 'ok \377\376 \303\251 end\n'"),
            turn(r"printf 'nul:\000:\r\n\r\033[31mred\033[0m\n'"),
            turn(SUBMIT),
        ],
    },
    "step_limit": {
        "script": [turn("echo 1"), turn("echo 2"), turn("echo 3")],
        "agent": {"step_limit": 2},
    },
    "submit": {
        "script": [
            turn(r"printf 'a\nb\n' > f.txt; cat f.txt"),
            turn("cp f.txt patch.txt; echo; cat patch.txt"),
            turn(f"{SUBMIT} && cat patch.txt"),
        ],
    },
    "submit_failed_then_ok": {
        "script": [
            turn(f"{SUBMIT} && cat patch.txt"),
            turn("echo X > patch.txt"),
            turn(f"{SUBMIT} && cat patch.txt"),
        ],
    },
    "submit_leading_blank_lines": {
        "script": [
            turn(r"printf '\n\n  COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT  \npatch\n'"),
        ],
    },
    "timeout_partial_output": {
        "script": [turn("echo before; sleep 30; echo after"), turn(f"{SUBMIT}; echo recovered")],
        "env": {"timeout": 1},
    },
}


def run_scenario(name: str, scenario: dict[str, Any]) -> dict[str, Any]:
    """Run one scenario with the library and return it with what must come out."""
    config = AGENT | scenario.get("agent", {})
    env = {"timeout": 10} | scenario.get("env", {})
    with tempfile.TemporaryDirectory() as folder:
        model = TextModel(scenario["script"])
        agent = DefaultAgent(model, LocalEnvironment(cwd=folder, **env), **config)
        raised = run_library(agent, f"T-{name}")
    expected = {
        "messages": comparable(agent.messages),
        "n_calls": agent.n_calls,
        "cost": agent.cost,
        "raised": raised,
    }
    return {
        "scenario": name,
        "script": scenario["script"],
        "env": env,
        "agent": config,
        "model": model.config,
        "expected": expected,
    }


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for key, value in SCENARIOS.items():
        text = json.dumps(run_scenario(key, value), indent=1, ensure_ascii=True)
        (FOLDER / f"{key}.json").write_text(text + "\n", encoding="utf-8")
