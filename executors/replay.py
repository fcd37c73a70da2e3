"""Replay: a recorded run as traces, to be scheduled again on other resources.

A run directory is its own recording: token arrays tell how long every generation and observation
was, events tell how long starts, commands and verdicts took. Times are those under the recorded
run's load; episodes without generated tokens are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from agentflow.errors import ConfigError
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.types import EpisodeId, StepStatus

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


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

    def take(self, event: dict[str, Any]) -> None:
        """Take an event in."""
        kind, at = event["kind"], event["t"]
        match kind:
            case "env_starting" | "command_started" | "reward_started":
                self.began[kind] = at
            case "env_started":
                self.start_s = at - self.began.get("env_starting", at)
            case "generation_ended" if event["status"] != StepStatus.ABORTED:
                self.commands.append(0.0)
            case "command_ended" if self.commands:
                self.commands[-1] = at - self.began.get("command_started", at)
            case "reward_ended":
                self.verdict_s = at - self.began.get("reward_started", at)
            case "restarted_clean":
                self.commands.clear()
            case _:
                pass


def load_recording(folder: Path) -> Recording:
    """Read a run directory. Raises ConfigError when it is none, or is damaged."""
    times = dict[EpisodeId, _Times]()
    moments = list[float]()
    for event in _lines(folder / "events.jsonl"):
        if "uid" in event:
            episode = EpisodeId(uid=event["uid"], replica_index=event["replica_index"])
            times.setdefault(episode, _Times()).take(event)
            moments.append(event["t"])
    traces, skipped = list[EpisodeTrace](), 0
    for row in _lines(folder / "samples.jsonl"):
        episode = EpisodeId(uid=row["uid"], replica_index=row["replica_index"])
        trace = _trace(folder, row, episode, times.get(episode, _Times()))
        skipped += trace is None
        traces += [trace] if trace is not None else []
    if not traces:
        raise ConfigError(f"{folder} holds no episode that generated anything")
    traces.sort(key=lambda trace: trace.episode)
    return Recording(
        traces=traces, skipped=skipped, makespan_s=max(moments) - min(moments) if moments else 0.0
    )


def _trace(
    folder: Path, row: dict[str, Any], episode: EpisodeId, times: _Times
) -> EpisodeTrace | None:
    try:
        with np.load(folder / row["tokens"]) as arrays:
            mask, prompt = arrays["response_mask"], len(arrays["prompts"])
    except (OSError, KeyError, ValueError) as error:
        raise ConfigError(f"{folder / row['tokens']}: {error}") from error
    if not mask.any():
        return None
    return EpisodeTrace(
        episode=episode,
        prompt=prompt,
        turns=_turns(mask, times.commands),
        start_s=times.start_s,
        verify_s=max(times.verdict_s - times.start_s, 0.0),
        resolved=row["reward"] > 0,
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


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}; --from takes a run directory") from error
    for number, line in enumerate(lines, 1):
        try:
            yield orjson.loads(line)
        except orjson.JSONDecodeError as error:
            if number < len(lines):  # a killed run may leave its last line unfinished
                raise ConfigError(f"{path}, line {number}: {error}") from error
