"""Replay: a recorded run as traces, to be scheduled again on other resources.

A run directory is its own recording: token arrays tell how long every generation and observation
was, events tell how long starts, commands and verdicts took. Times are those under the recorded
run's load; episodes without generated tokens are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from pydantic import BaseModel, FiniteFloat, ValidationError

from agentflow.engine.recorded_tokens import read_tokens
from agentflow.errors import ConfigError
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.types import EpisodeId, StepStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

Line = TypeVar("Line", bound="BaseModel")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What a run directory tells."""

    traces: list[EpisodeTrace]
    skipped: int
    """Ended episodes that generated nothing."""
    makespan_s: float
    """Seconds from the first event of an episode to the last."""


@dataclass(slots=True)
class _Times:
    """One episode's durations, from its events; a clean restart begins anew."""

    began: dict[str, float] = field(default_factory=dict)
    start_s: float = 0.0
    verdict_s: float = 0.0
    commands: list[float] = field(default_factory=list)
    """Seconds of each turn's command; 0 for a turn without one."""

    def take(self, event: _Event) -> None:
        """Take an event in."""
        kind, at = event.kind, event.t
        match kind:
            case "env_starting" | "command_started" | "reward_started":
                self.began[kind] = at
            case "env_started":
                self.start_s = self._since("env_starting", at)
            case "generation_ended" if event.status != StepStatus.ABORTED:
                self.commands.append(0.0)
            case "command_ended" if self.commands:
                self.commands[-1] = self._since("command_started", at)
            case "reward_ended":
                self.verdict_s = self._since("reward_started", at)
            case "restarted_clean":
                self.commands.clear()
            case _:
                pass

    def _since(self, kind: str, at: float) -> float:
        return max(at - self.began.get(kind, at), 0.0)


class _Event(BaseModel):
    """What counts of a line of events.jsonl."""

    kind: str
    t: FiniteFloat
    uid: str | None = None
    replica_index: int = 0
    status: str | None = None


class _Row(BaseModel):
    """What counts of a line of samples.jsonl."""

    uid: str
    replica_index: int
    tokens: str
    reward: FiniteFloat | None


def load_recording(folder: Path) -> Recording:
    """Read a run directory. Raises ConfigError when it is none, or is damaged."""
    times = dict[EpisodeId, _Times]()
    moments = list[float]()
    for event in _lines(folder / "events.jsonl", _Event):
        if event.uid is not None:
            episode = EpisodeId(uid=event.uid, replica_index=event.replica_index)
            times.setdefault(episode, _Times()).take(event)
            moments.append(event.t)
    traces, skipped = dict[EpisodeId, EpisodeTrace](), 0
    for row in _lines(folder / "samples.jsonl", _Row):
        episode = EpisodeId(uid=row.uid, replica_index=row.replica_index)
        if episode in traces:
            raise ConfigError(f"{folder / 'samples.jsonl'}: {episode} has ended twice")
        trace = _trace(folder, row, episode, times.get(episode, _Times()))
        if trace is None:
            skipped += 1
        else:
            traces[episode] = trace
    if not traces:
        raise ConfigError(f"{folder} holds no episode that generated anything")
    return Recording(
        traces=[traces[episode] for episode in sorted(traces)],
        skipped=skipped,
        makespan_s=max(moments) - min(moments),
    )


def _trace(folder: Path, row: _Row, episode: EpisodeId, times: _Times) -> EpisodeTrace | None:
    tokens = read_tokens(folder / row.tokens)
    if not tokens.response_mask.any():
        return None
    turns = _turns(tokens.response_mask, times.commands)
    if len(times.commands) < len(turns) - 1:  # a failure may have ended the last one
        raise ConfigError(
            f"{folder / 'events.jsonl'} tells of {len(times.commands)} turns of {episode}, which"
            f" had {len(turns)}: the file is cut, or the agent was not driven action by action"
        )
    return EpisodeTrace(
        episode=episode,
        prompt=len(tokens.prompts),
        turns=turns,
        start_s=times.start_s,
        verify_s=max(times.verdict_s - times.start_s, 0.0),
        resolved=(row.reward or 0.0) > 0,
    )


def _turns(mask: NDArray[np.int8], commands: list[float]) -> tuple[TurnTrace, ...]:
    """Cut a mask, which begins with a generated token, into turns.

    Commands are aligned at the start; after a fork, which drops earlier turns, at the end.
    """
    edges = [0, *(np.flatnonzero(np.diff(mask)) + 1).tolist(), len(mask)]
    runs = [end - start for start, end in pairwise(edges)]
    outputs, observations = runs[0::2], [*runs[1::2], 0]
    seconds = commands[-len(outputs) :] + [0.0] * (len(outputs) - len(commands))
    return tuple(
        TurnTrace(output=output, command_s=command_s, observation=observation)
        for output, command_s, observation in zip(outputs, seconds, observations, strict=False)
    )


def _lines(path: Path, model: type[Line]) -> Iterator[Line]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; --from takes a run directory") from error
    for number, line in enumerate(lines, 1):
        try:
            yield model.model_validate_json(line)
        except ValidationError as error:
            detail = error.errors()[0]
            if number == len(lines) and detail["type"] == "json_invalid":
                return  # a killed run may leave its last line unfinished
            where = "".join(f" {key}:" for key in detail["loc"])
            raise ConfigError(f"{path}, line {number}:{where} {detail['msg']}") from error
