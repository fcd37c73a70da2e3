"""The SGLang client passes the contract of every engine, on the fake server and on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_contract import EngineContract

from agentflow.engine.fake_sglang import FakeModel, FakeOptions, FakeSglang
from agentflow.engine.sglang import SglangConfig, SglangEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

STEP_S = 0.001
"""Slow enough that an abort at the first token comes before the last one."""


class TestSglangEngine(EngineContract):
    """The contract, for incremental servers with free slots and cumulative ones with few."""

    @pytest.fixture(params=["incremental", "cumulative"])
    async def engine(self, request: pytest.FixtureRequest) -> AsyncIterator[SglangEngine]:
        """Start a fake server and connect to it."""
        options = FakeOptions(
            model=FakeModel(vocab_size=512, context_length=1024, eos_id=511),
            incremental=request.param == "incremental",
            slots=2 if request.param == "cumulative" else 16,
            step_s=STEP_S,
        )
        async with FakeSglang(options) as server:
            config = SglangConfig(urls=(server.url,), vocab_size=512)
            async with SglangEngine(config) as engine:
                yield engine


@pytest.mark.sglang
class TestSglangEngineOnARealServer(EngineContract):
    """The contract, on a real SGLang."""

    @pytest.fixture
    async def engine(self, sglang_url: str) -> AsyncIterator[SglangEngine]:
        """Connect."""
        async with SglangEngine(SglangConfig(urls=(sglang_url,))) as engine:
            yield engine
