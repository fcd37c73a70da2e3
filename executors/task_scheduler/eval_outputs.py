"""EvalDetails: what `--save-eval-details` writes while a step goes.

    eval_details/{id}.jsonl              a line a sample, when its task ends
    eval_details/{id}.placements.jsonl   a line a turn: node IP, GPUs, which engine answered
    eval_details/{id}.summary.json       failure classes and aborts, at the end

`{id}` is the iteration of an evaluation, and `train_{id}` that of a rollout.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from executors.runs.files import LineFile, OutputError, write_atomic, writing
from executors.task_scheduler.data_source import DATASET
from executors.task_scheduler.termination_summary import AGENT_REASON, REASON, termination_summary

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from agentflow.types import RolloutSample
    from executors.task_scheduler.args import SchedulerArgs
    from executors.task_scheduler.resource import Placement
    from executors.task_scheduler.tasks import Task

FOLDER = "eval_details"


class Details(Protocol):
    """Sees what happens in a step."""

    def turn(
        self, sample: RolloutSample, placement: Placement | None, *, turn: int, source: str
    ) -> None:
        """See one turn begin."""
        ...

    def task(self, task: Task) -> None:
        """See one task end."""
        ...

    def finish(self, samples: Iterable[RolloutSample]) -> None:
        """See the step end, with all its samples."""
        ...


class NoDetails:
    """Writes nothing."""

    def turn(
        self, sample: RolloutSample, placement: Placement | None, *, turn: int, source: str
    ) -> None:
        """Do nothing."""

    def task(self, task: Task) -> None:
        """Do nothing."""

    def finish(self, samples: Iterable[RolloutSample]) -> None:
        """Do nothing."""


NO_DETAILS = NoDetails()


class EvalDetails:
    """Writes the three files of one step. Raises OutputError when the disk refuses."""

    def __init__(self, folder: Path, name: str) -> None:
        """Begin anew: lines of an earlier try of the same step are replaced."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        self._summary = folder / f"{name}.summary.json"
        rows, turns = folder / f"{name}.jsonl", folder / f"{name}.placements.jsonl"
        for path in (rows, turns, self._summary):
            with writing(path):
                path.unlink(missing_ok=True)
        self._failure: OutputError | None = None
        with ExitStack() as stack:
            self._rows = LineFile(rows)
            stack.callback(self._rows.close)
            self._turns = LineFile(turns)
            stack.pop_all()

    def turn(
        self, sample: RolloutSample, placement: Placement | None, *, turn: int, source: str
    ) -> None:
        """Append one turn's place. What the disk refuses is told when the next task ends.

        Turns are heard of in a callback of the loop, where an error would reach nobody.
        """
        row = {
            "uid": sample.episode.uid,
            "replica_index": sample.episode.replica_index,
            "turn": turn,
            "node_ip": None if placement is None else placement.node,
            "gpus": [] if placement is None else placement.gpus,
            "source": source,
        }
        try:
            self._turns.append(_line(row))
        except OutputError as error:
            self._failure = error

    def task(self, task: Task) -> None:
        """Append a line for each of its samples."""
        if self._failure is not None:
            raise self._failure
        for sample in task.samples:
            self._rows.append(_line(eval_row(sample)))

    def finish(self, samples: Iterable[RolloutSample]) -> None:
        """Write the summary."""
        data = orjson.dumps(termination_summary(samples), option=orjson.OPT_INDENT_2)
        write_atomic(self._summary, data)

    def close(self) -> None:
        """Close the files."""
        self._rows.close()
        self._turns.close()


@contextmanager
def details(args: SchedulerArgs, name: str) -> Iterator[Details]:
    """Open the step's files, where they are wanted."""
    if not args.save_eval_details or args.save is None:
        yield NO_DETAILS
        return
    written = EvalDetails(Path(args.save) / FOLDER, name)
    try:
        yield written
    finally:
        written.close()


def eval_row(sample: RolloutSample) -> dict[str, Any]:
    """Give an ended sample as its line has it."""
    ending = sample.ending
    return {
        "uid": sample.episode.uid,
        "replica_index": sample.episode.replica_index,
        "dataset": sample.metadata.get(DATASET),
        "instance_id": sample.task.get("instance_id"),
        "reward": {"score": sample.rewards},
        "class": sample.termination,
        "reason": sample.metadata.get(REASON),
        "agent_reason": sample.metadata.get(AGENT_REASON),
        "remove_sample": sample.remove_sample,
        "cause": None if ending is None else ending.cause,
        "message": "" if ending is None else ending.message,
        "turns": sample.facts.turns,
        "prompt_tokens": len(sample.prompts),
        "response_tokens": len(sample.responses),
        "patch": sample.facts.patch,
    }


def _line(row: dict[str, Any]) -> bytes:
    return orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE, default=str)
