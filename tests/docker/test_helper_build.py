"""The binaries in the wheel are what the source gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

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


def test_an_unknown_machine_has_no_helper() -> None:
    """The shell session is for those."""
    assert helper.binary("riscv64") is None
