"""`benchmarks.gpu` at toy size, on a real server."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sglang


def test_it_compares_the_policies_on_a_real_server(tmp_path: Path) -> None:
    """Every policy generates, and the engine's loads are seen."""
    path = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.gpu", "--cpu", "--json", str(path)]
    subprocess.run(command, check=True, cwd=Path(__file__).parents[2])
    figures = json.loads(path.read_text())["figures"]
    for policy in ("trajectory_slots", "trajectory_containers", "fcfs"):
        assert figures[f"tokens_s.{policy}"] > 0
        assert figures[f"slots.{policy}"] > 0
