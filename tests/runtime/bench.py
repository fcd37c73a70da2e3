"""A task small enough to judge in a second, and what tests do with it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentflow.swe.runtime import PytestRuntimeBuilder
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.swe.tasks.gitwire import difference
from agentflow.swe.tasks.tree import TreeFile
from agentflow.types import ContainerSpec, EpisodeId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from agentflow.protocols import ContainerEnv, ContainerEnvBuilder, Runtime
    from agentflow.swe.tasks.tree import Tree

REPOSITORY = {
    "adder/__init__.py": "from adder.core import add\n",
    "adder/core.py": "def add(a, b):\n    return a - b\n\n\ndef same(a):\n    return a\n",
    "tests/conftest.py": "import pytest\n\n\n@pytest.fixture\ndef two():\n    return 2\n",
    "tests/test_adder.py": "def test_old():\n    assert True\n",
    "README.md": "adder\n",
}
JUDGE = {
    "tests/test_adder.py": (
        "import unittest\n\n"
        "from adder import core\n\n\n"
        "def test_add(two):\n    assert core.add(two, 3) == 5\n\n\n"
        "def test_same():\n    assert core.same(4) == 4\n\n\n"
        "class Unit(unittest.TestCase):\n"
        "    def test_unit(self):\n        self.assertEqual(core.add(1, 1), 2)\n"
    )
}
FIX = "def add(a, b):\n    return a + b\n\n\ndef same(a):\n    return a\n"


@dataclass(kw_only=True)
class Bench:
    """One task, its files, and environments to try patches in."""

    row: dict[str, Any]
    tree: Tree
    envs: ContainerEnvBuilder

    def sample(self, patch: str | None = None, /, **changes: Any) -> tuple[SWESample, Runtime]:
        """An episode and its runtime; `changes` go into the task's row."""
        row = {**self.row, **changes}
        sample = SWESample(
            episode=EpisodeId(uid=str(row["instance_id"])), m=SWEMeta(data=SWEData(task=row))
        )
        sample.m.rollout.patch = patch
        return sample, PytestRuntimeBuilder({}).build(sample)

    def patch(self, files: Mapping[str, str | None]) -> str:
        """The patch that writes (or, with None, deletes) these files."""
        after = dict(self.tree)
        for path, text in files.items():
            if text is None:
                del after[path]
            else:
                after[path] = TreeFile(data=text.encode())
        return difference(self.tree, after)

    async def env(self) -> ContainerEnv:
        """A fresh environment."""
        return await self.envs.start(ContainerSpec())

    async def verdict(self, patch: str, /, **changes: Any) -> tuple[float | None, dict[str, Any]]:
        """Judge a patch in a fresh environment."""
        sample, runtime = self.sample(patch, **changes)
        async with await self.env() as env:
            await runtime.eval(env)
        assert sample.m.rollout.verdict is not None
        return sample.reward, sample.m.rollout.verdict


def write_all(folder: Path, files: Mapping[str, str]) -> Path:
    """Write files with their folders; returns the folder."""
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder
