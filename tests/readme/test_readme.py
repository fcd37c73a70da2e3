"""README's examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def run_example(number: int, folder: Path) -> list[str]:
    """Run a Python block of README as it stands, from nothing but the package."""
    text = (ROOT / "README.md").read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[number]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_the_example_prints_what_it_resolved(tmp_path: Path) -> None:
    """The whole run of README."""
    assert run_example(0, tmp_path)[-1:] == ["resolved 2 of 2"]
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


@pytest.mark.slow
def test_the_trainers_example_trains(tmp_path: Path) -> None:
    """The trainer's loop of README: two steps of two groups of two."""
    assert run_example(1, tmp_path) == ["[1.0, 1.0, 1.0, 1.0]"] * 2


def test_every_folder_that_readme_names_exists() -> None:
    """The table of folders speaks of what is there."""
    text = (ROOT / "README.md").read_text("utf-8")
    table = text[text.index("## Where things are") : text.index("## Bring your own")]
    for name in re.findall(r"^\| `([a-z_/]+)", table, re.MULTILINE):
        assert (ROOT / name).is_dir() or (ROOT / f"{name}.py").exists(), name


def test_the_table_of_knobs_is_the_codes() -> None:
    """README's table of flags and variables is what the code prints."""
    printed = subprocess.run(
        [sys.executable, "-m", "executors.task_scheduler.knobs"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed in (ROOT / "README.md").read_text("utf-8")
