"""Section 6: every flag and variable, in one table made from the code."""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import fields

import pytest

from agentflow.errors import ConfigError
from executors.task_scheduler import SchedulerArgs
from executors.task_scheduler.args import add_arguments, from_namespace, parse_args
from executors.task_scheduler.knobs import KNOBS, KnobKind, markdown

IN_THE_TEXT = {
    "--env-cluster-layout",
    "--env-num-cpus",
    "--env-memory-gb",
    "--evaluator-concurrency",
    "--evaluator-batch-size",
    "--save-eval-details",
    "--n-samples-per-eval-prompt",
    "STACX_DAGGER_ENV_CONCURRENCY",
    "STACX_DAGGER_BETA",
    "STACX_DAGGER_EVAL_BETA",
    "STACX_FORCE_FRESH_ROLLOUT",
    "STACX_REUSE_ROLLOUT",
    "STACX_REUSE_PER_ITER_DIR",
    "STACX_SAVE_PER_ITER_PT",
}


def test_every_knob_of_the_text_is_in_the_table() -> None:
    """By the text's own name."""
    assert {knob.name for knob in KNOBS} >= IN_THE_TEXT


def test_every_flag_parses_to_its_default_and_to_a_value() -> None:
    """A trainer's own parser takes them as well."""
    assert parse_args([]) == SchedulerArgs()
    parsed = parse_args(["--env-num-cpus", "8", "--eval-top-k", "5", "--finish-only"])
    assert (parsed.env_num_cpus, parsed.eval_top_k, parsed.finish_only) == (8.0, 5, True)
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert from_namespace(parser.parse_args(["--evaluator-concurrency", "2"])) == SchedulerArgs(
        evaluator_concurrency=2
    )


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--evaluator-batch-size", "0"], "--evaluator-batch-size is 0; it must be at least 1"),
        (["--env-num-cpus", "many"], "invalid float value: 'many'"),
        (["--no-such-flag"], "unknown flag '--no-such-flag'"),
    ],
)
def test_a_bad_flag_is_named(argv: list[str], complaint: str) -> None:
    """Name, value, what would be right."""
    with pytest.raises(ConfigError, match=complaint):
        parse_args(argv)


def test_the_table_has_a_line_for_each_knob_and_no_two_alike() -> None:
    """Flags come from the record that the code reads."""
    assert len({knob.name for knob in KNOBS}) == len(KNOBS)
    assert len([k for k in KNOBS if k.kind is KnobKind.FLAG]) == len(fields(SchedulerArgs))
    assert len(markdown().splitlines()) == len(KNOBS) + 2


def test_the_table_can_be_printed() -> None:
    """`python -m executors.task_scheduler.knobs`."""
    command = [sys.executable, "-m", "executors.task_scheduler.knobs"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == markdown()
