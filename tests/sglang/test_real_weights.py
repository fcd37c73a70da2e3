"""Tensors sent to a real SGLang on the CPU, by both ways that need no disk."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from real_runs import LAYOUT, Runs, chain, prompt_of

from agentflow.engine.sglang import PauseMode
from agentflow.errors import EngineAdminFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agentflow.engine.sglang import SglangEngine

pytestmark = pytest.mark.sglang

SCRIPT = Path(__file__).with_name("trainer.py")
PIPE = asyncio.subprocess.PIPE


@asynccontextmanager
async def trainer(*words: str) -> AsyncIterator[Any]:
    """Run a trainer that has the weights `b`; gives what it says."""
    how, *rest = words
    process = await asyncio.create_subprocess_exec(
        *(str(LAYOUT.python), str(SCRIPT), how, str(LAYOUT.checkpoint("b")), *rest),
        stdin=PIPE,
        stdout=PIPE,
        limit=1 << 26,
    )
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
        await process.communicate(b"")  # closes its input
        assert process.returncode == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def check_weights(engine: SglangEngine, following: list[int], version: int) -> None:
    """Generate, and see whose tokens come."""
    sink = await Runs(engine).to_the_end(1, [], 8)
    assert sink.ids == chain(prompt_of(1), 8, following)
    assert set(sink.versions) == {version}
    assert (await engine.info()).weight_version == version


async def test_weights_from_tensors(engine: SglangEngine, successors: dict[str, list[int]]) -> None:
    """Tensors as SGLang serialises them are loaded under a pause, as the version named."""
    async with trainer("tensor") as serialized:
        async with engine.paused(PauseMode.RETRACT):
            await engine.update_weights_from_tensor([serialized], version=3)
        await check_weights(engine, successors["b"], 3)


async def test_weights_over_a_process_group(
    engine: SglangEngine, successors: dict[str, list[int]]
) -> None:
    """The trainer is rank 0 of a group that the server joins, and may be joined anew afterwards."""
    for version in (4, 5):
        port = free_port()
        async with trainer("distributed", str(port)) as told:
            await engine.init_weights_update_group(
                address="127.0.0.1", port=port, world_size=2, backend="gloo"
            )
            async with engine.paused(PauseMode.RETRACT):
                await engine.update_weights_from_distributed(**told, version=version)
            await check_weights(engine, successors["b"], version)
        await engine.destroy_weights_update_group()


async def test_tensors_that_are_none_leave_no_update_open(
    engine: SglangEngine, successors: dict[str, list[int]]
) -> None:
    """A group that was never joined is an error in the server's words, and nothing is stuck."""
    for _ in range(2):
        with pytest.raises(EngineAdminFailed, match="update_weights_from_distributed"):
            await engine.update_weights_from_distributed(
                names=["w"], dtypes=["float32"], shapes=[[1]], group="nobody", version=9
            )
    await check_weights(engine, successors["a"], 0)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
