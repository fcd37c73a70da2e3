"""Starts runs as processes, kills them, and reads what they leave."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

PROGRAM = Path(__file__).with_name("paced_run.py")
ROOT = Path(__file__).parents[2]
LOOK_S = 0.05
PATIENCE = int(120 / LOOK_S)

ARRAYS = ("prompts", "responses", "response_mask", "rollout_log_prob")


def start(what: str, out: Path, scratch: Path) -> subprocess.Popen[bytes]:
    """Start a run, or go on with one."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), what, str(out), str(scratch)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def finish(run: subprocess.Popen[bytes]) -> str:
    """Wait for a run that must end well; returns what it said."""
    said, _ = run.communicate(timeout=240)
    assert run.returncode == 0, said.decode()
    return said.decode()


def kill_when(run: subprocess.Popen[bytes], moment: Callable[[], bool], more_s: float = 0) -> bool:
    """Kill it a little after the moment; False: it ended before."""
    for _ in range(PATIENCE):
        if moment():
            break
        if _ends_within(run, LOOK_S):
            break
    else:
        raise AssertionError("the moment never came")
    if more_s:
        _ends_within(run, more_s)
    run.kill()
    run.communicate()
    return run.returncode == -9


def _ends_within(run: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        run.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def rows(out: Path) -> list[dict[str, Any]]:
    """Read whole lines of samples.jsonl."""
    path = out / "samples.jsonl"
    lines = path.read_text().split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def names(out: Path) -> list[str]:
    """Name what has ended."""
    return [f"{row['uid']}#{row['replica_index']}" for row in rows(out)]


def lives(out: Path) -> list[list[dict[str, Any]]]:
    """Read the events, those of each process by themselves."""
    found: list[list[dict[str, Any]]] = []
    for line in (out / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] == "run_started":
            found.append([])
        found[-1].append(event)
    return found


def begun(events: list[dict[str, Any]], kind: str = "leased") -> set[str]:
    """Name the episodes that have an event of a kind."""
    return {f"{e['uid']}#{e['replica_index']}" for e in events if e["kind"] == kind}


def in_journal(out: Path, table: str) -> int:
    """Count the rows of a table, while somebody else writes them; 0 before there is one."""
    path = out / "journal.sqlite"
    if not path.exists():
        return 0
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            (count,) = database.execute(f"SELECT count(*) FROM {table}").fetchone()
    except sqlite3.OperationalError:  # its tables are not made yet
        return 0
    return int(count)


def tokens(out: Path) -> dict[str, dict[str, list[Any]]]:
    """Read every sample's arrays."""
    found = {}
    for row in rows(out):
        with np.load(out / row["tokens"]) as arrays:
            found[row["key"]] = {name: arrays[name].tolist() for name in ARRAYS}
    return found


def left_in(scratch: Path) -> list[str]:
    """Name what environments left behind."""
    return [path.name for path in scratch.iterdir() if path.is_dir()]
