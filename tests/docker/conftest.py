"""A real engine for every test here, and a check that a test leaves none of our containers."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest
from docker_tools import docker, our_containers, owner_of
from mortal_engine import mortal_engine

from agentflow.swe.environment.docker.owner import is_alive, myself

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mortal_engine import MortalEngine


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """Fail the test when containers of ours are there afterwards that were not there before.

    Those of another process that lives are its own business: tests may share an engine.
    """
    before = set(our_containers())
    yield
    owners = {name: owner_of(name) for name in set(our_containers()) - before}
    left = {name for name, by in owners.items() if by and (by == myself() or not is_alive(by))}
    assert not left


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """Name the one command that is missing where no engine answers."""
    try:
        docker("version")
    except (subprocess.CalledProcessError, FileNotFoundError):
        host = os.environ.get("DOCKER_HOST", "the default socket")
        pytest.fail(f"no Docker engine at {host}: scripts/docker-engine.sh start", pytrace=False)


@pytest.fixture(scope="session")
def killable() -> Iterator[MortalEngine]:
    """An engine of the tests' own, for all tests that kill one."""
    if os.geteuid() != 0:
        pytest.skip("starting an engine needs root")
    with mortal_engine() as engine:
        yield engine


@pytest.fixture
def mortal(killable: MortalEngine, monkeypatch: pytest.MonkeyPatch) -> MortalEngine:
    """Make it the engine that this test, and every process it starts, talks to."""
    monkeypatch.setenv("DOCKER_HOST", killable.host)
    return killable
