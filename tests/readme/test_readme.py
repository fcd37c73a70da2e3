"""README's examples do what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_example_prints_what_it_resolved(tmp_path: Path) -> None:
    """The Python block of README runs as it stands, from nothing but the package."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), "PATH": "/usr/local/bin:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1:] == ["resolved 2 of 2"], done.stderr
    assert (tmp_path / "runs" / "example" / "summary.json").exists()


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
