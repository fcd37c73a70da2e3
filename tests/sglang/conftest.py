"""Fixtures of the tests on a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from real_runs import LAYOUT, load

from agentflow.engine.sglang import SglangConfig, SglangEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture(scope="module")
def successors() -> dict[str, list[int]]:
    """Next token of each token, for both sets of weights."""
    return {
        name: json.loads((LAYOUT.checkpoint(name) / "successors.json").read_text())
        for name in ("a", "b")
    }


@pytest.fixture
async def engine(sglang_url: str) -> AsyncIterator[SglangEngine]:
    """Connect to the server; leaves it with the weights `a` as version 0."""
    async with SglangEngine(SglangConfig(urls=(sglang_url,))) as engine:
        await engine.wait_ready(timeout_s=60)
        yield engine
        await engine.resume()
        if (await engine.info()).weight_version:
            await load(engine, "a", 0)
