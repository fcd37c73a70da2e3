"""What the tests of the SGLang engine share."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from engine_contract import CollectingSink

from agentflow.engine.fake_sglang import FakeModel, FakeOptions, FakeSglang
from agentflow.engine.sglang import Deadlines, SglangConfig, SglangEngine
from agentflow.types import GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

VOCAB = 512
PROMPT = tuple(range(10, 42))
Sink = CollectingSink
MODEL = FakeModel(vocab_size=VOCAB, eos_id=VOCAB - 1)


def request(
    n: int = 0, prompt: Sequence[int] = PROMPT, *, priority: int | None = None, **sampling: Any
) -> GenerationRequest:
    """Make a greedy request with a rid of fixed width."""
    params = {"temperature": 0.0, "max_new_tokens": 32, **sampling}
    return GenerationRequest(
        rid=f"{0:012x}-{n:016x}-0000-000000",
        input_ids=np.asarray(prompt, np.int32),
        sampling=SamplingParams(**params),
        priority=priority,
    )


def expected(count: int, prompt: Sequence[int] = PROMPT, version: str = "default") -> list[int]:
    """Return what the fake server's model says after `prompt`."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(MODEL.next_token(ids, len(ids), version)[0])
    return ids[len(prompt) :]


@asynccontextmanager
async def pair(
    *, deadlines: Deadlines | None = None, **options: Any
) -> AsyncIterator[tuple[FakeSglang, SglangEngine]]:
    """Start a fake server and an engine on it."""
    options.setdefault("model", MODEL)
    async with FakeSglang(FakeOptions(**options)) as server:
        config = SglangConfig(
            urls=(server.url,),
            vocab_size=VOCAB,
            deadlines=deadlines or Deadlines(),
            api_key=options.get("api_key"),
        )
        async with SglangEngine(config) as engine:
            yield server, engine


@asynccontextmanager
async def fleet(
    count: int, *, deadlines: Deadlines | None = None, **options: Any
) -> AsyncIterator[tuple[list[FakeSglang], SglangEngine]]:
    """Start fake servers and one engine on all of them, connected."""
    options.setdefault("model", MODEL)
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(FakeSglang(FakeOptions(**options)))
            for _ in range(count)
        ]
        config = SglangConfig(
            urls=tuple(server.url for server in servers),
            vocab_size=VOCAB,
            deadlines=deadlines or Deadlines(),
        )
        engine = await stack.enter_async_context(SglangEngine(config))
        await engine.info()
        yield servers, engine


async def until(condition: Callable[[], bool]) -> None:
    """Let others run until `condition` holds."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # the server does not tell
            await asyncio.sleep(0)
