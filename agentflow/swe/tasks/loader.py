"""load_tasks: from a name or a file to checked task rows.

Names are `bundled` (tasks of our own) and `pypi` (pairs of releases); a comma joins several. Files
are JSON (a list or one row), JSON Lines, or a folder of them. Every complaint is a ConfigError that
says where.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.swe.tasks.schema import parse_task

if TYPE_CHECKING:
    from collections.abc import Iterator

HERE = Path(__file__).parent
BUNDLED = HERE / "bundled"
PYPI_PAIRS = HERE / "pypi_pairs"

Row = dict[str, Any]
Placed = tuple[str, Row]
"""Where a row stands (`file:line`), and the row."""


def load_tasks(spec: str | Path) -> list[Row]:
    """Read and check the rows that `spec` names.

    Raises ConfigError for a missing or empty file, bad JSON, a row without its tests, a slip in one
    of our keys, or an instance_id that comes twice.
    """
    placed = list(_from_spec(spec))
    if not placed:
        raise ConfigError(
            f"{spec}: no tasks in it; expected one row a line, or a JSON list of rows"
        )
    seen: dict[str, str] = {}
    for where, row in placed:
        name = parse_task(row, where=where).instance_id
        if name in seen:
            raise ConfigError(f"{where}: instance_id {name!r} was used before, at {seen[name]}")
        seen[name] = where
    return [row for _, row in placed]


def _from_spec(spec: str | Path) -> Iterator[Placed]:
    path = Path(spec)
    if path.exists():
        yield from _from_path(path)
        return
    for name in str(spec).replace("+", ",").split(","):
        match name.strip():
            case "bundled":
                yield from _bundled()
            case "pypi":
                yield from _from_path(PYPI_PAIRS)
            case other if other and Path(other).exists():
                yield from _from_path(Path(other))
            case other:
                raise ConfigError(
                    f"tasks {other!r}: no such file; "
                    "expected a .json or .jsonl file, a folder, 'bundled' or 'pypi'"
                )


def _bundled() -> Iterator[Placed]:
    for folder in sorted(BUNDLED.iterdir()):
        file = folder / "task.json"
        for where, row in _from_path(file):
            yield where, {**row, "patch": (folder / "oracle.patch").read_text("utf-8")}


def _from_path(path: Path) -> Iterator[Placed]:
    if path.is_dir():
        files = sorted([*path.glob("*.json"), *path.glob("*.jsonl"), *path.glob("*/task.json")])
        if not files:
            raise ConfigError(f"{path}: a folder without *.json, *.jsonl or */task.json")
        for file in files:
            yield from _from_path(file)
        return
    for where, row in _parsed(path):
        if not isinstance(row, dict):
            raise ConfigError(f"{where}: expected a task row (an object), got {str(row)[:60]!r}")
        yield where, _anchored(row, path.parent)


def _parsed(path: Path) -> Iterator[tuple[str, Any]]:
    text = _text(path)
    if path.suffix == ".json":
        whole = _json(text, str(path), first_line=1)
        yield from (
            ((f"{path}[{i}]", row) for i, row in enumerate(whole))
            if isinstance(whole, list)
            else [(str(path), whole)]
        )
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", _json(line, str(path), first_line=number)


def _text(path: Path) -> str:
    try:
        text = path.read_text("utf-8-sig")
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read: {exc.strerror}") from exc
    except UnicodeDecodeError as exc:
        raise ConfigError(f"{path}: not UTF-8 at byte {exc.start}") from exc
    if not text.strip():
        raise ConfigError(f"{path}: empty; expected one task row a line, or a JSON list of rows")
    return text


def _json(text: str, path: str, *, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as exc:
        line = first_line + exc.lineno - 1
        raise ConfigError(f"{path}:{line}: bad JSON: {exc.msg} at column {exc.colno}") from exc
    except RecursionError:
        raise ConfigError(
            f"{path}:{first_line}: bad JSON: nested too deeply; expected task rows"
        ) from None


def _anchored(row: Row, folder: Path) -> Row:
    """Make the relative paths of a `dir` source absolute: a row must mean the same anywhere."""
    source = row.get("source")
    if not isinstance(source, dict) or source.get("type") not in {"dir", "git"}:
        return row
    anchored = dict(source)
    for key in ("path", "tests", "url"):
        value = source.get(key)
        if isinstance(value, str) and (key != "url" or (folder / value).is_dir()):
            anchored[key] = str((folder / value).absolute())
    return {**row, "source": anchored}
