"""Every flag and variable of the scheduler's path, as one table.

    python -m executors.task_scheduler.knobs     prints it as Markdown, for the README

Flags come from `SchedulerArgs`, so that the table cannot say anything else than the code does.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from enum import StrEnum

from executors.task_scheduler.args import SchedulerArgs
from executors.task_scheduler.iteration import BETA, EVAL_BETA, ROLLOUT_ID, T_MAX
from executors.task_scheduler.recipes import DEFAULT_CONCURRENCY, ENV_CONCURRENCY
from executors.task_scheduler.reuse import FORCE_FRESH, PER_ITER_DIR, REUSE, SAVE_PER_ITER


class KnobKind(StrEnum):
    """Who sets a knob, and when."""

    FLAG = "flag"
    """At launch, on the command line."""
    VARIABLE = "variable"
    """At launch, in the environment."""
    WRITTEN = "written"
    """By the scheduler, every iteration; never by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One line of the table."""

    name: str
    kind: KnobKind
    default: str
    meaning: str


def _flags() -> list[Knob]:
    return [
        Knob(
            name="--" + field.name.replace("_", "-"),
            kind=KnobKind.FLAG,
            default=_shown(field.default),
            meaning=field.metadata["meaning"],
        )
        for field in fields(SchedulerArgs)
    ]


def _shown(default: object) -> str:
    if default is None:
        return "unset"
    return "off" if default is False else f"`{default}`"


_VARIABLES = (
    (
        ENV_CONCURRENCY,
        f"`{DEFAULT_CONCURRENCY}`",
        "Samples that one DAgger evaluator runs at a time.",
    ),
    (EVAL_BETA, "unset", "β of evaluations; unset: the student alone."),
    (FORCE_FRESH, "`0`", "1: every step rolls out, nothing is reused."),
    (REUSE, "`0`", "1: every step reads trajectory_sft_samples.pt."),
    (PER_ITER_DIR, "unset", "Folder whose …_iter_NNN.pt files are replayed in sequence."),
    (SAVE_PER_ITER, "`1`", "0: keep no …_iter_NNN.pt of each step."),
)

_WRITTEN = (
    (ROLLOUT_ID, "Index of the step under way."),
    (BETA, "Probability that the teacher answers a turn; taken away for evaluations."),
    (T_MAX, "Tail length in turns; written only where the schedule ramps it (t_max_step > 0)."),
)

KNOBS: tuple[Knob, ...] = (
    *_flags(),
    *(
        Knob(name=name, kind=KnobKind.VARIABLE, default=default, meaning=meaning)
        for name, default, meaning in _VARIABLES
    ),
    *(
        Knob(name=name, kind=KnobKind.WRITTEN, default="-", meaning=meaning)
        for name, meaning in _WRITTEN
    ),
)


def markdown() -> str:
    """Give the table."""
    lines = ["| knob | set by | default | meaning |", "|---|---|---|---|"]
    lines += [f"| `{k.name}` | {k.kind} | {k.default} | {k.meaning} |" for k in KNOBS]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
