"""samples.jsonl read back: what ended in a run, also in one that was killed while it wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

SAMPLES = "samples.jsonl"


def read_rows(run_dir: Path) -> list[dict[str, Any]]:
    """Read the rows of a run; a last line that was not finished is none. Raises ConfigError."""
    path = run_dir / SAMPLES
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return [orjson.loads(line) for line in lines if line]
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}: is not JSON lines: {error}") from error


def cut_torn_line(path: Path) -> None:
    """Cut off what follows the last line end: a write that a kill cut short."""
    with path.open("r+b") as file:
        data = file.read()
        file.truncate(data.rfind(b"\n") + 1)
