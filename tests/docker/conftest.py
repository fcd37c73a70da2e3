"""A real engine for every test here, and a check that a test leaves none of our containers."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker, our_containers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test when containers of ours are there afterwards that were not there before."""
    before = set(our_containers())
    yield
    assert set(our_containers()) <= before


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Name the one command that is missing where no engine answers."""
    try:
        docker("version")
    except (subprocess.CalledProcessError, FileNotFoundError):
        host = os.environ.get("DOCKER_HOST", "the default socket")
        pytest.fail(f"no Docker engine at {host}: scripts/docker-engine.sh start", pytrace=False)
