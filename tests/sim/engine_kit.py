"""A small engine with round numbers, and requests to it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from agentflow.sim.engine_spec import EngineSpec, EngineTimings
from agentflow.types import GenerationRequest, SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.sim.engine import SimulatedEngine

ROUND = EngineTimings(a=1.0, b=0.1, c=0.01, pa=2.0, pb=0.5, pg=0.001)
"""A step of one sequence over 10 tokens takes 1.2 s; 10 new tokens take 7.05 s."""


def spec(**changes: Any) -> EngineSpec:
    """Return the round engine with `changes`."""
    facts: dict[str, Any] = {"timings": ROUND, "vocab_size": 1000, "context_length": 10_000}
    return EngineSpec(**{**facts, **changes})


@dataclass
class Sink:
    """Keeps what an engine hands over."""

    ids: list[int] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take tokens."""
        assert len(ids) == len(logprobs)
        assert all(logprob < 0 for logprob in logprobs)
        self.ids += [int(i) for i in ids]
        self.versions += [version] * len(ids)


def request(
    rid: str, prompt: Sequence[int] | int, tokens: int, **sampling: Any
) -> GenerationRequest:
    """Ask for `tokens` after `prompt`: ids, or a number of ids that nobody else uses."""
    ids = [hash_id(rid, i) for i in range(prompt)] if isinstance(prompt, int) else prompt
    priority = sampling.pop("priority", None)
    return GenerationRequest(
        rid=rid,
        input_ids=np.array(ids, np.int32),
        sampling=SamplingParams(max_new_tokens=tokens, **sampling),
        priority=priority,
    )


def hash_id(rid: str, position: int) -> int:
    """Return an id that depends on the request's first letter and the position."""
    return (ord(rid[0]) * 31 + position) % 997


@dataclass
class Outcome:
    """How one request went."""

    at: float = -1.0
    """When it ended."""
    sink: Sink = field(default_factory=Sink)
    error: BaseException | None = None
    cached: int = -1
    retractions: int = -1


async def ask(engine: SimulatedEngine, req: GenerationRequest, *, at: float = 0.0) -> Outcome:
    """Send `req` at the loop's time `at` and wait for its end, whatever it is."""
    loop = asyncio.get_running_loop()
    await asyncio.sleep(at - loop.time())
    outcome = Outcome()
    try:
        result = await engine.generate(req, outcome.sink)
        outcome.cached, outcome.retractions = result.cached_tokens, result.retractions
    except Exception as exc:  # noqa: BLE001  # the test looks at it
        outcome.error = exc
    outcome.at = loop.time()
    engine.check()
    return outcome


class Log:
    """Keeps events as text."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def emit(self, kind: str, episode: object = None, /, **facts: Any) -> None:
        """Keep one."""
        time = asyncio.get_running_loop().time()
        self.lines.append(
            f"{time:.6g} {kind.removeprefix('engine_')} {facts.get('rid', '')}".strip()
        )
