"""Whole runs by action, from configuration to run directory, over the runner's real threads."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from agentflow.config_loading import Sources, check
from agentflow.errors import ConfigError
from executors.runs.session import Rollout
from priority.policies import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.protocols import ContainerEnv
    from agentflow.swe.sample import SWESample
    from priority.policies import Standing

PATCH = "--- a/code.py\n+++ b/code.py\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"
TASKS = [
    {"instance_id": f"task/{i}", "problem_statement": f"fix {i}", "patch": PATCH} for i in range(2)
]


class ByChance:
    """A policy of the user's: every fourth item is high, drawn by a seed."""

    def __init__(self, *, seed: int, preempts: bool) -> None:
        self.preempts = preempts
        self._chance = random.Random(seed)

    def classify(self, standing: Standing) -> Priority:
        """Draw."""
        return Priority(high=self._chance.random() < 0.25)


class Runtime:
    """Puts a file there and resolves every second replica."""

    def __init__(self, sample: SWESample) -> None:
        self.sample = sample

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Write a file."""
        await env.write_files({"code.py": b"x = 1\n"})

    async def diff(self, env: ContainerEnv) -> None:
        """Read it."""
        self.sample.m.rollout.patch = (await env.read_file("code.py", max_bytes=100)).decode()

    async def eval(self, env: ContainerEnv) -> None:
        """Judge."""
        await env.execute("true", check=True)
        self.sample.reward = float(self.sample.episode.replica_index % 2)


class RuntimeBuilder:
    """Makes them."""

    def __init__(self, conf: Mapping[str, Any]) -> None: ...

    def build(self, sample: SWESample) -> Runtime:
        """Make one."""
        return Runtime(sample)


def config_of(out: Path, url: str = "scripted:noisy:3", **rollout: Any) -> AgentflowConfig:
    """Configure the real agent in the real local environment, judged by the runtime here."""
    values = {
        "run": {"out": str(out), "n": 4, "seed": 5},
        "tasks": {"source": "three"},
        "engine": {"url": url},
        "rollout": {"max_concurrency": 6, "start_concurrency": 2, **rollout},
        "flow": {"runtime": {"name": f"{__file__}:RuntimeBuilder"}},
    }
    return check(Sources(values=values))


def rows(out: Path) -> dict[str, dict[str, Any]]:
    """Read samples.jsonl; every episode has one line."""
    lines = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    by_key = {row["key"]: row for row in lines}
    assert len(by_key) == len(lines)
    return by_key


def kinds(out: Path) -> list[str]:
    """Read what happened."""
    return [json.loads(line)["kind"] for line in (out / "events.jsonl").read_text().splitlines()]


@pytest.mark.slow
async def test_a_run_by_action_under_syncs_and_preemptions_gives_the_samples_of_a_plain_one(
    tmp_path: Path,
) -> None:
    """Groups of 4, weight syncs and preemptions by chance: same tokens, closed books, no leftovers.

    The plain run is NaiveExecutor's, in peace.
    """
    await Rollout(config_of(tmp_path / "plain"), load_tasks=lambda _: TASKS).run()
    config = config_of(
        tmp_path / "actions",
        enable_action_level_scheduling=True,
        gen_concurrency=2,
        policy={"name": f"{__file__}:ByChance", "seed": 1},
        preemption=True,
        rehearse_syncs_s=0.02,
        max_attempts=1000,
    )
    summary = await Rollout(config, load_tasks=lambda _: TASKS).run()
    plain, actions = rows(tmp_path / "plain"), rows(tmp_path / "actions")
    assert plain.keys() == actions.keys()
    assert len(plain) == 8
    for key, row in plain.items():
        same = ("cause", "reward", "turns", "generated_tokens", "patch", "remove_sample")
        assert {k: row[k] for k in same} == {k: actions[key][k] for k in same}
        left = np.load(tmp_path / "plain" / row["tokens"])
        right = np.load(tmp_path / "actions" / row["tokens"])
        for name in ("prompts", "responses", "response_mask", "rollout_log_prob"):
            assert left[name].tolist() == right[name].tolist()
    assert summary.samples.delivered == summary.samples.issued == 8
    assert (summary.samples.unaccounted, summary.tokens.unaccounted) == (0, 0)
    happened = kinds(tmp_path / "actions")
    assert happened.count("sync_started") == happened.count("sync_ended") > 0
    assert happened.count("env_started") == happened.count("env_stopped")


async def test_an_engine_that_cannot_be_paused_rehearses_no_syncs(tmp_path: Path) -> None:
    """The key, its value and what to do are told before anything is written."""
    from agentflow.engine.rids import RidFactory  # noqa: PLC0415
    from agentflow.engine.turns import EngineAccess  # noqa: PLC0415
    from agentflow.types import ModelInfo  # noqa: PLC0415

    class Plain:
        async def info(self) -> ModelInfo:
            return ModelInfo(name="plain", vocab_size=10, context_length=10)

        async def close(self) -> None: ...

    def make(*_: object) -> EngineAccess:
        return EngineAccess(engine=Plain(), renderer=None, rids=RidFactory())  # type: ignore[arg-type]

    config = config_of(tmp_path / "run", rehearse_syncs_s=1.0)
    with pytest.raises(ConfigError, match=r"rehearse_syncs_s: 1.0: the engine .* cannot be paused"):
        await Rollout(config, load_tasks=lambda _: TASKS, make_engine=make).run()
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flow", "on", "said"),
    [
        ("swe:agentflow", True, "SWEAgentFlow cannot be scheduled action by action"),
        ("action_level_swe", False, "needs rollout.enable_action_level_scheduling: true"),
    ],
)
async def test_a_flow_that_does_not_fit_the_scheduling_is_refused(
    tmp_path: Path, flow: str, *, on: bool, said: str
) -> None:
    """A flow without actions by action, and one with them without: bad input, nothing written."""
    config = config_of(tmp_path / "run", enable_action_level_scheduling=on)
    name = flow if ":" not in flow else "agentflow.swe:agentflow"
    changed = config.flow.model_copy(update={"name": name})
    config = config.model_copy(update={"flow": changed})
    with pytest.raises(ConfigError, match=said):
        await Rollout(config, load_tasks=lambda _: TASKS).run()
    assert not (tmp_path / "run").exists()
