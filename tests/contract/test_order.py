"""The simulated engine does things in the order in which SGLang does them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from order_scripts import KV_TOKENS, OBSERVED, SCRIPTS, SLOTS

from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.engine.sglang_cpu import CpuServer, Layout, installed
from agentflow.sim import EngineSpec, EngineTimings, SimulatedEngine, run_virtual

if TYPE_CHECKING:
    from collections.abc import Iterator

CPU_LIKE = EngineTimings(a=0.02, b=0.001, c=0.0, pa=0.01, pb=1e-4, pg=0.0)
"""Roughly a tiny model on a CPU; the scripts do not depend on it."""


def simulated() -> SimulatedEngine:
    """Make an engine like the real one of these scripts."""
    spec = EngineSpec(
        timings=CPU_LIKE,
        slots=SLOTS,
        kv_tokens=KV_TOKENS,
        context_length=4096,
        vocab_size=348,
        priorities=True,
        preemption=True,
    )
    return SimulatedEngine(spec)


def plain(seen: Any) -> Any:
    """Turn tuples into lists, so that results compare as JSON."""
    return json.loads(json.dumps(seen))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_the_simulated_engine_does_what_was_observed(script: Any) -> None:
    """Who waits, who is thrown out or retracted, what is cached: as SGLang 0.5.23 did it."""

    async def main() -> Any:
        return await script(simulated())

    assert plain(run_virtual(main())) == OBSERVED[script.__name__]


@pytest.fixture(scope="module")
def small_server() -> Iterator[str]:
    """Serve on a real SGLang with few slots and little KV memory."""
    layout = Layout.default()
    if not installed(layout):
        pytest.fail("no SGLang here: `make sglang-cpu` installs it")
    flags = ("--max-running-requests", str(SLOTS), "--max-total-tokens", str(KV_TOKENS))
    with CpuServer(layout, layout.checkpoint("a"), flags=flags) as server:
        yield server.url


@pytest.mark.sglang
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
async def test_sglang_does_what_was_observed(script: Any, small_server: str) -> None:
    """The same scripts on the real server, an empty cache before each."""
    async with SglangEngine(SglangConfig(urls=(small_server,))) as engine:
        await engine.flush()
        assert plain(await script(engine)) == OBSERVED[script.__name__]
