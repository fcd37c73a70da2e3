"""Real environments for the runtime's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest_asyncio
from bench import JUDGE, REPOSITORY, Bench, write_all

from agentflow.swe.environment.local import LocalEnvBuilder
from agentflow.swe.tasks.tree import read_folder

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path


@pytest_asyncio.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """The little task and the local environments."""
    repo = write_all(tmp_path / "repo", REPOSITORY)
    row = {
        "instance_id": "adder-1",
        "problem_statement": "add subtracts",
        "FAIL_TO_PASS": ["tests/test_adder.py::test_add", "tests/test_adder.py::Unit::test_unit"],
        "PASS_TO_PASS": ["tests/test_adder.py::test_same"],
        "source": {
            "type": "dir",
            "path": str(repo),
            "tests": str(write_all(tmp_path / "j", JUDGE)),
        },
        "plugins": [],
        "eval_timeout_s": 60,
    }
    envs = LocalEnvBuilder({})
    yield Bench(row=row, tree=read_folder(repo), envs=envs)
    await envs.close()
