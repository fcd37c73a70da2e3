"""The binaries in the wheel are what the source gives."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from typing import TYPE_CHECKING

import pytest
from docker_tools import ROOT

from agentflow.swe.environment.docker import helper
from agentflow.swe.environment.docker.helper.build import build

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.docker


def test_a_rebuild_gives_the_same_bytes(tmp_path: Path) -> None:
    """For every machine, byte by byte; the compiler comes from PyPI, pinned."""
    for made in build(tmp_path):
        shipped = helper.FOLDER / "bin" / made.name
        assert made.read_bytes() == shipped.read_bytes(), f"{made.name}: rebuild and commit it"


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_helper_needs_nothing_of_an_image(machine: str) -> None:
    """Static: no interpreter, so it runs in any image."""
    data = helper.binary(machine)
    assert data is not None
    assert data[:4] == b"\x7fELF"
    assert b"/lib64/ld-" not in data
    assert b"/lib/ld-" not in data


def test_the_wheel_ships_both(tmp_path: Path) -> None:
    """What is installed elsewhere has the helper of every machine."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--wheel-dir", tmp_path, ROOT], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = helper.FOLDER.relative_to(ROOT).as_posix()
    with zipfile.ZipFile(wheel) as archive:
        for machine in set(helper.MACHINES.values()):
            data = archive.read(f"{inside}/bin/helper-{machine}")
            assert data == helper.binary(machine)


def test_an_unknown_machine_has_no_helper() -> None:
    """The shell session is for those."""
    assert helper.binary("riscv64") is None
