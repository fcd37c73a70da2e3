"""Runs by action in containers, aborted at random: tokens, ledgers and containers are right."""

from __future__ import annotations

import dataclasses
import json
import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from token_witness import WitnessedModel, check_run

from agentflow.config_loading import Sources, check
from agentflow.engine.scripted import ScriptedSettings
from agentflow.engine.scripted_spec import scripted_engine
from agentflow.swe.tasks import with_oracles
from executors.runs.session import Rollout
from executors.wiring import build_engine
from priority.policies import Priority

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from priority.policies import Standing

pytestmark = [pytest.mark.docker, pytest.mark.usefixtures("nothing_left")]

PACE = ScriptedSettings(tokens_per_s=250, chunk_tokens=8)
"""A turn takes a second or more: its slot is never free, and aborts come anywhere in it."""


class Returning:
    """Who comes back from a command is high, most often; who begins is low, and in its way."""

    def __init__(self, *, seed: int, preempts: bool) -> None:
        self.preempts = preempts
        self._chance = random.Random(seed)
        self._asked: Counter[int] = Counter()

    def classify(self, standing: Standing) -> Priority:
        """Low when it is submitted and when it has started."""
        self._asked[standing.order] += 1
        begins = self._asked[standing.order] <= 2
        return Priority(high=not begins and self._chance.random() < 2 / 3)


@pytest.mark.parametrize(
    ("source", "tasks"), [("bundled", 2), pytest.param("pypi", 3, marks=pytest.mark.pypi)]
)
async def test_syncs_and_preemptions_at_random_over_containers(
    tmp_path: Path, *, source: str, tasks: int
) -> None:
    """Groups of 4: each sample ends once, exact; both ledgers close; no container is left."""
    out = tmp_path / "run"
    config = check(
        Sources(
            values={
                "run": {"out": str(out), "n": 4, "seed": 4},
                "tasks": {"source": source, "limit": tasks},
                "engine": {"url": "scripted:noisy:3"},
                "flow": {"environment": {"name": "docker"}},
                "rollout": {
                    "enable_action_level_scheduling": True,
                    "max_concurrency": 6,
                    "gen_concurrency": 1,
                    "policy": {"name": f"{__file__}:Returning", "seed": 1},
                    "preemption": True,
                    "max_preemptions": 20,
                    "max_attempts": 1000,
                    "rehearse_syncs_s": 1.0,
                },
            }
        )
    )
    witnesses: list[WitnessedModel] = []

    def make(config: AgentflowConfig, rows: Sequence[Mapping[str, Any]]) -> EngineAccess:
        url = str(config.engine.url)
        witness = WitnessedModel(scripted_engine(url, with_oracles(rows), settings=PACE))
        witnesses.append(witness)
        return dataclasses.replace(build_engine(config, rows), engine=witness)

    await Rollout(config, make_engine=make).run()
    (witness,) = witnesses
    generated = check_run(out, witness.generations)
    summary = json.loads((out / "summary.json").read_text())
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    happened = Counter(event["kind"] for event in events)
    assert summary["episodes"] == summary["samples"]["delivered"] == 4 * tasks
    assert summary["resolved"] > 0
    assert summary["samples"]["unaccounted"] == summary["tokens"]["unaccounted"] == 0
    assert summary["tokens"]["received"] == summary["tokens"]["delivered"] == generated
    assert happened["sync_started"] == happened["sync_ended"] > 0
    assert happened["preempted"] > 0
    assert happened["resumed"] > 0
    assert happened["restarted_clean"] == 0
    assert happened["env_started"] == happened["env_stopped"]
