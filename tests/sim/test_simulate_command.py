"""`agentflow simulate` as a person calls it."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import orjson
import pytest
from typer.testing import CliRunner

from executors.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

TINY = ("simulate", "--workload", "tiny", "--groups", "2", "--group-size", "4")


def call(*args: str) -> tuple[int, str]:
    """Run the command; return its code and output."""
    result = CliRunner().invoke(app, args)
    return result.exit_code, result.output


def test_it_prints_the_ratio_and_the_waterfall_and_writes_figures(tmp_path: Path) -> None:
    """The file's figures are flat and agree with each other."""
    path = tmp_path / "figures.json"
    code, output = call(*TINY, "--seed", "1", "--json", str(path))
    assert code == 0
    assert "rho" in output
    assert "waterfall" in output
    figures = orjson.loads(path.read_bytes())["figures"]
    parts = [value for name, value in figures.items() if name.startswith("waterfall_")]
    assert abs(sum(parts) - figures["makespan_s"]) < 1e-6
    assert figures["rho"] >= 1


def test_longest_first_is_no_slower_with_few_live_episodes() -> None:
    """The order of starts is an option, and it matters."""

    def makespan(order: str) -> float:
        _, output = call(*TINY, "--live", "3", "--order", order)
        line = next(line for line in output.splitlines() if line.startswith("makespan"))
        return float(line.split()[1])

    assert makespan("longest") < makespan("shortest")


def test_single_actions_can_be_scheduled_instead() -> None:
    """The same workload and figures, under the action-level flow."""
    code, output = call(*TINY, "--schedule", "action-longest")
    assert code == 0
    assert "8 episodes" in output


def test_faults_are_counted_and_no_violation_is_success() -> None:
    """One line of sums, then the kinds."""
    code, output = call("simulate", "--faults", "--seeds", "3")
    assert code == 0
    assert "3 seeds" in output
    assert "0 violations" in output


@pytest.mark.slow
def test_seeds_are_played_until_there_are_so_many_turns_in_any_number_of_processes() -> None:
    """Every token has a cause, and the output does not tell how many processes it came from."""
    command = ("simulate", "--faults", "--schedule", "action-drawn", "--turns", "600")
    code, output = call(*command)
    assert code == 0
    first, tokens, *_ = output.splitlines()
    assert 600 <= int(first.split()[4]) < 700
    received, columns = tokens.removeprefix("tokens received ").split(" = ")
    assert int(received) == sum(int(column.split()[1]) for column in columns.split(" + "))
    words = [sys.executable, "-m", "executors.cli", *command, "--jobs", "2"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == output


def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    """For names, folders and engines that are too small."""
    for args, told in (
        (("--workload", "nope"), "no workload 'nope'"),
        (("--from", str(tmp_path)), "--from takes a run directory"),
        (("--engine", "qwen3-8b-h100-tp1", "--kv-tokens", "0"), "KV capacity"),
        (("--kv-tokens", "50", "--workload", "tiny"), "kv_tokens = 50 must be at least"),
        (("--schedule", "action-drawn"), "action-drawn: is for fault runs"),
        (("--json", str(tmp_path / "no" / "x.json")), f"the folder {tmp_path / 'no'} is not there"),
        (("--faults", "--group-size", "4"), "--group-size: with --faults the seed chooses it"),
        (("--faults", "--from", str(tmp_path)), "--from: with --faults the seed chooses it"),
        (("--seeds", "3"), "--seeds: is for --faults"),
        (("--turns", "3"), "--turns: is for --faults"),
        (("--jobs", "3"), "--jobs: is for --faults"),
        (("--faults", "--turns", "9", "--seeds", "3"), "--turns 9: --seeds 3 says how many"),
        (("--from", str(tmp_path), "--workload", "tiny"), "--workload: with --from the recorded"),
    ):
        code, output = call("simulate", *args)
        assert code == 2
        assert told in output


def test_each_replica_has_a_worker_with_its_share(tmp_path: Path) -> None:
    """As in a run, whatever is scheduled."""
    for schedule in ("naive", "action-fcfs"):
        path = tmp_path / f"{schedule}.json"
        words = ("--schedule", schedule, "--replicas", "2", "--slots", "2", "--live", "5")
        code, output = call(*TINY, *words, "--json", str(path))
        assert code == 0, output
        assert orjson.loads(path.read_bytes())["figures"]["episodes"] == 8


def test_fewer_live_episodes_than_replicas_is_an_error() -> None:
    """Each has a worker, and that an episode."""
    code, output = call(*TINY, "--replicas", "3", "--live", "2")
    assert code != 0
    assert "--live 2: is less than --replicas 3" in output
