"""GatedEngine: the door between episodes and engines, where the scheduler's criteria are kept.

Owns which episode is under which criteria. Every generation of an episode that was opened here is
counted, ended at its limits, and sent to the engine that was chosen for its turn; so any agent and
any flow can be held to them. A turn that is continued after an abort is the same turn.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentflow.engine.rids import episode_key
from agentflow.errors import ConfigError, ContextFull, EngineError
from agentflow.types import Cause

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from agentflow.protocols import Model, TokenSink
    from agentflow.swe.sample import SWESample
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo
    from executors.task_scheduler.stopping import StoppingCriteria


class TurnLimit(EngineError):
    """The episode has had all the turns it may have."""

    cause = Cause.STEP_LIMIT


@dataclass(slots=True, kw_only=True)
class Gate:
    """One episode at the door."""

    sample: SWESample
    stopping: StoppingCriteria
    choose: Callable[[int], str]
    """The name of the engine that answers a turn, counted from 0; the same whenever asked."""
    on_turn: Callable[[int, str], None]
    """Hears of each turn once, with its engine's name."""
    seen: int = -1
    """The last turn that was told."""


class GatedEngine:
    """Several engines behind one `Model`; the first is the one for everything ungated."""

    def __init__(self, engines: Mapping[str, Model]) -> None:
        """Engines by name; they must speak the same token ids."""
        self._engines = dict(engines)
        self._default = next(iter(self._engines.values()))
        self._gates: dict[str, Gate] = {}
        self._flights: dict[str, Model] = {}
        self._info: ModelInfo | None = None

    @contextmanager
    def open(self, gate: Gate) -> Iterator[None]:
        """Hold an episode to its criteria while the context lasts."""
        key = gate.sample.episode.key
        self._gates[key] = gate
        try:
            yield
        finally:
            del self._gates[key]

    async def info(self) -> ModelInfo:
        """Describe the first engine, with the shortest context of all.

        Raises ConfigError when their vocabularies differ.
        """
        if self._info is None:
            infos = {name: await engine.info() for name, engine in self._engines.items()}
            sizes = {name: info.vocab_size for name, info in infos.items()}
            if len(set(sizes.values())) > 1:
                raise ConfigError(f"engines that answer one episode need one vocabulary: {sizes}")
            shortest = min(info.context_length for info in infos.values())
            self._info = replace(next(iter(infos.values())), context_length=shortest)
        return self._info

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Generate with the turn's engine. Raises TurnLimit and ContextFull at the limits."""
        gate = self._gates.get(episode_key(request.rid) or "")
        engine = self._default
        if gate is not None:
            request, engine = self._through(gate, request)
        self._flights[request.rid] = engine
        try:
            return await engine.generate(request, sink)
        finally:
            del self._flights[request.rid]

    def _through(self, gate: Gate, request: GenerationRequest) -> tuple[GenerationRequest, Model]:
        model, stopping = gate.sample.model, gate.stopping
        assert model is not None
        if stopping.max_turns is not None and model.turns > stopping.max_turns:
            model.turns = stopping.max_turns  # the one that is refused has not begun
            raise TurnLimit(f"all {stopping.max_turns} turns are used")
        if stopping.max_context_len is not None:
            room = stopping.max_context_len - len(request.input_ids)
            if room <= 0:
                raise ContextFull(
                    f"{len(request.input_ids)} tokens fill the {stopping.max_context_len} allowed"
                )
            budget = min(request.sampling.max_new_tokens, room)
            request = replace(request, sampling=replace(request.sampling, max_new_tokens=budget))
        turn = model.turns - 1
        name = gate.choose(turn)
        if turn != gate.seen:
            gate.seen = turn
            gate.on_turn(turn, name)
        return request, self._engines[name]

    async def abort(self, rid: str) -> None:
        """Abort at the engine that has the request; harmless when there is none."""
        engine = self._flights.get(rid)
        if engine is not None:
            await engine.abort(rid)

    async def close(self) -> None:
        """Close every engine."""
        for engine in self._engines.values():
            await engine.close()
