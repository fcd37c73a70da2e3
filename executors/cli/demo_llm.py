"""`agentflow demo-llm`: a small language model acts on the bundled tasks, for anyone to watch."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from agentflow.config_loading import load_config
from executors.cli import report, running
from executors.cli.exits import ExitCode
from executors.runs.sample_rows import trajectory_name
from executors.runs.session import Rollout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from agentflow.config import AgentflowConfig
    from agentflow.types import Message, RolloutSample

CONFIG = Path(__file__).with_name("demo_llm.yaml")

_SHOWN = 100
"""Characters of a command or of a malformed turn that are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """What one episode, or all, did."""

    turns: int = 0
    executed: int = 0
    """Commands that were run."""
    succeeded: int = 0
    """Commands that ended with return code 0."""
    malformed: int = 0
    """Turns that hold no command, or several."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Acts:
        """Count an episode's own turns; worked examples are not its own."""
        turns = [m for m in messages if _is_turn(m)]
        codes = [m["extra"]["returncode"] for m in messages if "returncode" in _extra(m)]
        submitted = sum(_extra(m).get("exit_status") == "Submitted" for m in messages)
        return cls(
            turns=len(turns),
            executed=len(codes) + submitted,
            succeeded=codes.count(0) + submitted,
            malformed=sum(not _extra(m)["actions"] for m in turns),
        )

    def __add__(self, other: Acts) -> Acts:
        return Acts(
            turns=self.turns + other.turns,
            executed=self.executed + other.executed,
            succeeded=self.succeeded + other.succeeded,
            malformed=self.malformed + other.malformed,
        )


class ActingWatcher(report.TerminalWatcher):
    """Shows what each episode did, as it ends."""

    def ended(self, sample: RolloutSample) -> None:
        """Show an ended episode and its commands."""
        super().ended(sample)
        for line in told(sample.facts.messages):
            self.console.print(f"      {line}", markup=False, soft_wrap=True)


def settings(*, url: str, model: Path, out: Path, limit: int | None) -> AgentflowConfig:
    """Return the configuration of the demonstration. Raises ConfigError."""
    options: dict[str, tuple[tuple[str, ...], Any]] = {
        "--engine": (("engine", "url"), url),
        "--model": (("engine", "model"), str(model)),
        "--out": (("run", "out"), str(out)),
        "--limit": (("tasks", "limit"), limit),
    }
    return load_config(CONFIG, options=options, assignments=())


def run(*, url: str, model: Path, out: Path, limit: int | None) -> ExitCode:
    """Roll out the bundled tasks; fails where the model ran no command. Raises AgentflowError."""
    config = settings(url=url, model=model, out=out, limit=limit)
    watcher = ActingWatcher(report.make_console())
    rollout = Rollout(config, argv=sys.argv, watcher=watcher)
    code = running.run(rollout, grace_s=config.rollout.stop_grace_s, watcher=watcher)
    total = print_acts(watcher.samples, out)
    if code is ExitCode.DONE and not total.executed:
        return ExitCode.FAILED
    return code


def print_acts(samples: Sequence[RolloutSample], out: Path) -> Acts:
    """Print a row for each episode, with its trajectory, and the sums."""
    console, total = report.make_console(), Acts()
    table = Table("episode", "turns", "executed", "malformed", "reward", "tokens")
    table.add_column("trajectory", overflow="fold")
    for sample in samples:
        acts = Acts.of(sample.facts.messages)
        total += acts
        tokens, path = sample.facts.generated_tokens, trajectory_name(sample.episode)
        cells = (acts.turns, acts.executed, acts.malformed, f"{sample.rewards:g}", tokens, path)
        table.add_row(str(sample.episode), *map(str, cells))
    console.print(table)
    reward = sum(sample.rewards for sample in samples)
    tokens = sum(sample.facts.generated_tokens for sample in samples)
    console.print(
        f"{total.turns} turns: {total.executed} commands executed ({total.succeeded} with return"
        f" code 0), {total.malformed} malformed; reward {reward:g}, {tokens} tokens;"
        f" trajectories in {out}/trajectories",
        markup=False,
        soft_wrap=True,
    )
    return total


def told(messages: Sequence[Message]) -> Iterator[str]:
    """Give a line a turn: the command and what it returned, or what was malformed."""
    for message, answer in zip(messages, [*messages[1:], {}], strict=True):
        if not _is_turn(message):
            continue
        actions = _extra(message)["actions"]
        if not actions:
            yield f"? {_short(message['content'])}"
            continue
        code = _extra(answer).get("returncode", _extra(answer).get("exit_status", "not run"))
        yield f"$ {_short(actions[0]['command'])}  -> {code}"


def _is_turn(message: Message) -> bool:
    return message["role"] == "assistant" and "actions" in _extra(message)


def _extra(message: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = message.get("extra", {})
    return found


def _short(text: str) -> str:
    line = text.replace("\n", "\\n")
    return line if len(line) <= _SHOWN else line[:_SHOWN] + "…"
