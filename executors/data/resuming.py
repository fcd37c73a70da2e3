"""Resuming: what a killed run left in its directory, as a new process goes on with it.

Nothing but the directory is needed: config.yaml says how it was run, samples.jsonl what has ended,
the journal what was issued and how far the rest had come.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.config_loading import load_config
from agentflow.errors import ConfigError
from executors.data import journal_schema
from executors.data.books import Restored
from executors.data.journal import Journal
from executors.data.journal_schema import Contents, revive
from executors.runs.run_dir import RunStatus
from executors.runs.run_rows import read_rows, read_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from executors.data.journal_schema import Member


_HELD_BY = {
    journal_schema.RUN: "a run of its own: go on with `agentflow run --resume`",
    journal_schema.TRAINER: "a trainer's: go on with RolloutBackend.from_run",
}


def run_config(path: Path, *, option: str) -> AgentflowConfig:
    """Read the configuration of a run, wherever its directory is now. Raises ConfigError."""
    if not (path / "run.json").is_file():
        raise ConfigError(f"{option}: {path} holds no run; give a directory that has a run.json")
    return load_config(path / "config.yaml", options={option: (("run", "out"), str(path))})


def resumed_config(path: Path) -> AgentflowConfig:
    """Read the configuration of a run that is to be gone on with. Raises ConfigError."""
    config = run_config(path, option="--resume")
    if not is_done(path) and not config.rollout.journal:
        raise ConfigError(
            f"--resume: {path} has no {journal_schema.FILE}: only a run with rollout.journal: true"
            " (--journal) can be resumed"
        )
    return config


def read_journal(path: Path, *, holder: str) -> Contents:
    """Read the journal in a run's directory, which may be empty. Raises ConfigError.

    A run may have been killed before it made one, but not after an episode had ended. What a
    trainer held is gone on with by a trainer, as it alone knows what it has used.
    """
    contents = journal_schema.read(path / journal_schema.FILE)
    if contents is None and (rows := read_rows(path)):
        raise ConfigError(
            f"--resume: {path / journal_schema.FILE} is missing or empty, though {len(rows)}"
            " episodes have ended: put back the file that the run wrote"
        )
    if contents is not None and contents.holder not in {holder, None}:
        raise ConfigError(f"--resume: {path} is {_HELD_BY[contents.holder]}")
    return contents if contents is not None else Contents()


def is_done(path: Path) -> bool:
    """Whether a run came to its end."""
    return bool(read_run(path)["status"] == RunStatus.DONE)


def remove_spent_journal(path: Path) -> None:
    """Remove the journal of a run that was killed after its end, before it could itself.

    As long as it is there, it spares environments that nobody comes back to.
    """
    file = path / journal_schema.FILE
    contents = journal_schema.read(file)
    if contents is not None and contents.holder == journal_schema.RUN:
        Journal(file, keep_results=False).remove()


@dataclass(slots=True, kw_only=True)
class Leftover:
    """What an earlier process left of a run."""

    rows: Sequence[Mapping[str, Any]]
    """Of what has ended."""
    groups: Sequence[Sequence[Member]]
    """What has not, group by group."""
    planned: int

    @classmethod
    def read(cls, path: Path) -> Leftover:
        """Read the directory of a run that nobody else goes on with. Raises ConfigError."""
        if is_done(path):
            raise ConfigError(f"--resume: nothing is left to do: the run in {path} is done")
        rows = read_rows(path)
        contents = read_journal(path, holder=journal_schema.RUN)
        finished = {str(row["key"]) for row in rows}
        groups = [
            [m for m in group if not m.ended and m.sample.episode.key not in finished]
            for group in contents.groups.values()
        ]
        planned = sum(map(len, contents.groups.values()))
        return cls(rows=rows, groups=[group for group in groups if group], planned=planned)

    def tasks(self) -> list[Mapping[str, Any]]:
        """Give the rows of the tasks that are left, each once."""
        rows = {m.sample.task["instance_id"]: m.sample.task for group in self.groups for m in group}
        return list(rows.values())


def restored(group: Iterable[Member]) -> list[Restored]:
    """Make a group's samples, interrupted ones with what they go on from.

    The flow must be loaded: its plug-ins are what is unpickled here.
    """
    group = list(group)
    for member in group:
        if not member.ended and member.dropped is None:
            _interrupt(member)
    return [Restored(sample=m.sample, ended=m.ended, dropped=m.dropped) for m in group]


def _interrupt(member: Member) -> None:
    """Let an episode that was under way go on; the crash was one more beginning."""
    state = revive(member)
    if state is not None:
        member.sample.partial_agent_data = state
        member.sample.attempt += 1


def carried_tokens(samples: Iterable[Restored]) -> Counter[str]:
    """Count the tokens that an earlier process received for what goes on, by `EpisodeId.key`."""
    carried = Counter[str]()
    for one in samples:
        sample, state = one.sample, one.sample.partial_agent_data
        if one.ended or one.dropped is not None:
            continue
        carried[sample.episode.key] = sample.restarted_tokens
        if state is not None:
            carried[sample.episode.key] += state.record.generated + state.model.lost_tokens
    return carried
