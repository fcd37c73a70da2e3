"""What every benchmark leaves: `{"commit", "seed", "config", "figures"}`, figures by flat names."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


def write_report(
    path: Path | None, figures: Mapping[str, float], *, config: Mapping[str, Any], seed: int = 0
) -> None:
    """Write a benchmark's file, if one was asked for."""
    if path is None:
        return
    document = {"commit": commit(), "seed": seed, "config": config, "figures": figures}
    path.write_text(json.dumps(document, indent=1) + "\n")


def positive(text: str) -> int:
    """Read an option's number of things. Raises ArgumentTypeError."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number from 1 on")
    return int(text)


def output_file(text: str) -> Path:
    """Take a command line's path of a file to write, before anything is measured."""
    path = Path(text)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be written: {error.strerror}") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written; it must be a file's path")
    return path


def output_folder(text: str) -> Path:
    """Take a command line's path of a folder to write into, and make it."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be made: {error.strerror}") from error
    return path


def show(figures: Mapping[str, float]) -> None:
    """Print a table."""
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


def read_figures(path: Path) -> dict[str, float]:
    """Read a file of figures. Raises ConfigError when it cannot be read, or is no such file."""
    try:
        figures = json.loads(path.read_text())["figures"]
        return {str(name): float(value) for name, value in figures.items()}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f'{path}: {error!r}; it must be {{"figures": {{"name": number, ...}}}}'
        ) from error


def commit() -> str:
    """The commit that is measured, or `unknown` outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
