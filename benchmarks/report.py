"""What every benchmark leaves: `{"commit", "seed", "config", "figures"}`, figures by flat names."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def write_report(
    path: Path | None, figures: Mapping[str, float], *, config: Mapping[str, Any], seed: int = 0
) -> None:
    """Write a benchmark's file, if one was asked for."""
    if path is None:
        return
    document = {"commit": commit(), "seed": seed, "config": config, "figures": figures}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def show(figures: Mapping[str, float]) -> None:
    """Print a table."""
    table = Table("figure", "value")
    for name, value in figures.items():
        table.add_row(name, f"{value:,.2f}")
    Console().print(table)


def read_figures(path: Path) -> dict[str, float]:
    """Read the figures of a benchmark's file."""
    figures: dict[str, float] = json.loads(path.read_text())["figures"]
    return figures


def commit() -> str:
    """The commit that is measured, or `unknown` outside a repository."""
    command = ["git", "rev-parse", "HEAD"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"
