"""A run of 64 episodes, and what looks at it while it goes."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Any

import parts
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from executors.cli.app import app
from executors.runs.session import Rollout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from agentflow.types import RolloutSample

TASKS = [{"instance_id": f"task/{i}", "problem_statement": "fix it"} for i in range(16)]
EPISODES = 64


def agentflow(*args: str) -> str:
    """Run the command in this process; it must succeed."""
    result = CliRunner().invoke(app, args)
    if result.exception is not None:
        raise result.exception
    return result.stdout


def status(out: Path) -> dict[str, Any]:
    """Ask `agentflow status --json`."""
    found: dict[str, Any] = json.loads(agentflow("status", "--json", str(out)))
    return found


def scrape(url: str) -> dict[str, float]:
    """Scrape, as `name{label=value,…}` → value."""
    with urllib.request.urlopen(url) as answer:
        text = answer.read().decode()
    return {
        sample.name
        + (
            "{" + ",".join(f"{k}={v}" for k, v in sample.labels.items()) + "}"
            if sample.labels
            else ""
        ): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class Looker:
    """A watcher that looks from outside when so many episodes have ended."""

    def __init__(self, looks: dict[int, Callable[[], None]]) -> None:
        self.looks = looks
        self.seen = 0

    def started(self, planned: int) -> None:
        """Nothing to see yet."""

    def ended(self, sample: RolloutSample) -> None:
        """Look, when it is time."""
        self.seen += 1
        if (look := self.looks.pop(self.seen, None)) is not None:
            look()


async def run(out: Path, looks: dict[int, Callable[[], None]], **rollout: Any) -> None:
    """Run 64 episodes and look as told."""
    config = parts.make_config(
        out,
        run={"n": EPISODES // len(TASKS)},
        rollout={"max_concurrency": 6, **rollout},
        observe={"metrics_port": 0, "metrics_s": 0.05},
    )
    looker = Looker(looks)
    await Rollout(
        config, watcher=looker, make_engine=parts.make_engine, load_tasks=lambda _: TASKS
    ).run()
    assert not looker.looks


def slices(out: Path) -> Counter[str]:
    """Count the slices of trace.json, by group; those inside of environments by their names."""
    events = json.loads((out / "trace.json").read_bytes())["traceEvents"]
    groups = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    inner = {"start", "command"}
    return Counter(
        e["name"] if e["name"] in inner else groups[e["pid"]] for e in events if e["ph"] == "X"
    )
