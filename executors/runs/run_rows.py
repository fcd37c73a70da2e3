"""run.json and samples.jsonl read back: how a run stands, and what ended in it.

Also of one that was killed while it wrote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = "samples.jsonl"


def read_run(run_dir: Path) -> dict[str, Any]:
    """Read how a run stands. Raises ConfigError."""
    path = run_dir / "run.json"
    try:
        found = orjson.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{run_dir} holds no run: run.json: {error.strerror}") from error
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: is not JSON: {error}") from error
    if not isinstance(found, dict) or "status" not in found:
        raise ConfigError(f"{path}: has no status: it is not what a run wrote")
    return found


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Read the rows of a run; a last line that was not finished is none. Raises ConfigError."""
    path = run_dir / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    return [_row(line, place=f"{path}:{n}") for n, line in enumerate(lines, start=1) if line]


def _row(line: bytes, *, place: str) -> dict[str, Any]:
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{place}: is not JSON: {error.msg}") from error
    if not isinstance(row, dict) or "key" not in row:
        raise ConfigError(f"{place}: has no key: it is not what a run wrote")
    return row


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line end: a write that a kill cut short."""
    with path.open("r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
