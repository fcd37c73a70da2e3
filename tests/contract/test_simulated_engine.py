"""SimulatedEngine passes the contract of every engine, in real time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from engine_contract import EngineContract

from agentflow.sim.engine import SimulatedEngine
from agentflow.sim.engine_spec import EngineSpec, EngineTimings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

BRISK = EngineTimings(a=1e-3, b=0.0, c=0.0, pa=1e-3, pb=0.0, pg=0.0)
"""64 tokens in 64 ms."""


class TestSimulatedEngine(EngineContract):
    """The contract, with free slots and with few, with and without a cache."""

    @pytest.fixture(params=["roomy", "two slots", "little KV", "no cache"])
    async def engine(self, request: pytest.FixtureRequest) -> AsyncIterator[SimulatedEngine]:
        """Make the engine and see that nothing is left in it."""
        spec = EngineSpec(
            timings=BRISK,
            vocab_size=1000,
            context_length=2048,
            slots=2 if request.param == "two slots" else 64,
            kv_tokens=200 if request.param == "little KV" else None,
            prefix_cache=request.param != "no cache",
        )
        engine = SimulatedEngine(spec)
        yield engine
        engine.check()
        await engine.close()
