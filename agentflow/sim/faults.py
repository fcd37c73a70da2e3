"""Faults: a seeded injector around the parts that an episode awaits.

Wraps a `Model`, a `ContainerEnvBuilder` and a `RuntimeBuilder`; every await of an episode passes
one of them, and each passage may draw a fault. Faults that hit no single await (an engine's death,
weight syncs, aborts out of nowhere) are in `disturbances`. The same seed draws the same faults.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from agentflow.errors import (
    ContainerKilled,
    EngineDied,
    EngineRejected,
    EngineUnreachable,
    EnvStartFailed,
)
from agentflow.sim.environment import SimulatedEnv

if TYPE_CHECKING:
    import random
    from collections.abc import Mapping

    from agentflow.protocols import (
        ContainerEnv,
        Model,
        Runtime,
        RuntimeBuilder,
        TokenSink,
    )
    from agentflow.sim.environment import SimulatedEnvBuilder
    from agentflow.swe.sample import SWESample
    from agentflow.types import (
        CommandResult,
        ContainerSpec,
        GenerationRequest,
        GenerationResult,
        ModelInfo,
    )

LOST_REPLY_S = 60.0
"""After this silence a client gives a reply up."""
SLOW_S = 30.0
"""How late the latest slow answer is."""


class Fault(StrEnum):
    """What can happen at an await."""

    UNREACHABLE = "engine unreachable"
    REJECTED = "request rejected"
    LOST_REPLY = "reply lost"
    SLOW_REPLY = "reply slow"
    START_FAILED = "start failed"
    START_SLOW = "start slow"
    ENV_DIES = "environment dies"
    CONTAINER_KILLED = "container killed by its command"
    HUNG_COMMAND = "command hangs"
    SLOW_COMMAND = "command slow"
    SLOW_STOP = "stop slow"
    BUILD_FAILED = "runtime not built"
    BOOTSTRAP_FAILED = "bootstrap failed"
    DIFF_FAILED = "diff failed"
    EVAL_FAILED = "eval failed"


_AT_GENERATE = (Fault.UNREACHABLE, Fault.REJECTED, Fault.LOST_REPLY, Fault.SLOW_REPLY)
_AT_START = (Fault.START_FAILED, Fault.START_SLOW)
_AT_COMMAND = (Fault.ENV_DIES, Fault.CONTAINER_KILLED, Fault.HUNG_COMMAND, Fault.SLOW_COMMAND)


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultRates:
    """How often an await meets a fault, 0..1."""

    generate: float = 0.02
    start: float = 0.1
    command: float = 0.015
    stop: float = 0.1
    runtime: float = 0.05


class FaultSource:
    """Draws faults and counts them."""

    def __init__(self, rng: random.Random, rates: FaultRates) -> None:
        self.rng = rng
        self.rates = rates
        self.counts: Counter[str] = Counter()

    def draw(self, rate: float, faults: tuple[Fault, ...]) -> Fault | None:
        """Return the fault that happens now, if one does."""
        if self.rng.random() >= rate:
            return None
        fault = self.rng.choice(faults)
        self.counts[fault] += 1
        return fault

    async def delay(self, most_s: float) -> None:
        """Let up to `most_s` pass."""
        await asyncio.sleep(self.rng.uniform(0, most_s))


class FaultyModel:
    """A `Model` whose replies fail, come late or get lost."""

    def __init__(self, model: Model, faults: FaultSource) -> None:
        self._model = model
        self._faults = faults
        self.in_flight: dict[str, None] = {}
        """Rids of requests that have not ended, oldest first."""

    async def info(self) -> ModelInfo:
        """Describe the engine behind it."""
        return await self._model.info()

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Generate, unless a fault comes between."""
        fault = self._faults.draw(self._faults.rates.generate, _AT_GENERATE)
        self.in_flight[request.rid] = None
        try:
            match fault:
                case Fault.UNREACHABLE:
                    raise EngineUnreachable("injected: no connection")
                case Fault.REJECTED:
                    raise EngineRejected("injected: refused")
                case Fault.LOST_REPLY:
                    return await self._lose(request, sink)
                case _:
                    result = await self._model.generate(request, sink)
            if fault is Fault.SLOW_REPLY:
                await self._faults.delay(SLOW_S)
            return result
        finally:
            self.in_flight.pop(request.rid, None)

    async def _lose(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Stop hearing of the request at some moment; give it up after a silence."""
        patience_s = self._faults.rng.uniform(0, 5)
        try:
            async with asyncio.timeout(patience_s):
                return await self._model.generate(request, sink)
        except TimeoutError:
            await asyncio.sleep(LOST_REPLY_S)
            raise EngineDied(f"injected: silent for {LOST_REPLY_S:.0f} s") from None

    async def abort(self, rid: str) -> None:
        """Abort at the engine behind it."""
        await self._model.abort(rid)

    async def close(self) -> None:
        """Close the engine behind it."""
        await self._model.close()


class FaultyEnvBuilder:
    """A `ContainerEnvBuilder` whose starts fail or are slow."""

    def __init__(self, envs: SimulatedEnvBuilder, faults: FaultSource) -> None:
        self._envs = envs
        self._faults = faults
        envs.make_env = partial(FaultyEnv, faults=faults)

    async def start(self, spec: ContainerSpec) -> ContainerEnv:
        """Start, unless a fault comes between."""
        fault = self._faults.draw(self._faults.rates.start, _AT_START)
        if fault is not None:
            await self._faults.delay(SLOW_S)
        if fault is Fault.START_FAILED:
            raise EnvStartFailed("injected: no such image")
        return await self._envs.start(spec)

    async def close(self) -> None:
        """Close the builder behind it."""
        await self._envs.close()


class FaultyEnv(SimulatedEnv):
    """A simulated environment that dies, hangs or is slow."""

    def __init__(self, builder: SimulatedEnvBuilder, name: str, *, faults: FaultSource) -> None:
        super().__init__(builder, name)
        self._faults = faults

    async def execute(
        self,
        command: str,
        *,
        check: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run, unless a fault comes between."""
        fault = self._faults.draw(self._faults.rates.command, _AT_COMMAND)
        match fault:
            case Fault.ENV_DIES:
                self._die_soon()
            case Fault.CONTAINER_KILLED:
                await self._faults.delay(1)
                self._die_soon(within_s=0)
                raise ContainerKilled("injected: it killed its own container")
            case Fault.HUNG_COMMAND if timeout_s is not None:
                command = "sleep inf"
            case Fault.SLOW_COMMAND:
                await self._faults.delay(SLOW_S)
            case _:
                pass
        return await super().execute(command, check=check, cwd=cwd, env=env, timeout_s=timeout_s)

    def _die_soon(self, *, within_s: float = 3) -> None:
        after_s = self._faults.rng.uniform(0, within_s)
        asyncio.get_running_loop().call_later(after_s, self.kill)

    async def stop(self) -> None:
        """Stop, perhaps slowly."""
        if self._faults.draw(self._faults.rates.stop, (Fault.SLOW_STOP,)) is not None:
            await self._faults.delay(SLOW_S)
        await super().stop()


class InjectedBug(Exception):
    """What a plug-in of somebody else may raise: not one of agentflow's errors."""


class FaultyRuntimeBuilder:
    """A `RuntimeBuilder` that fails, and whose runtimes do."""

    def __init__(self, runtimes: RuntimeBuilder, faults: FaultSource) -> None:
        self._runtimes = runtimes
        self._faults = faults

    def build(self, sample: SWESample) -> Runtime:
        """Build, unless a fault comes between."""
        self.maybe_fail(Fault.BUILD_FAILED)
        return FaultyRuntime(self._runtimes.build(sample), self)

    def maybe_fail(self, fault: Fault) -> None:
        """Raise what a plug-in would, if `fault` is drawn."""
        if self._faults.draw(self._faults.rates.runtime, (fault,)) is not None:
            raise InjectedBug(f"injected: {fault}")


class FaultyRuntime:
    """A `Runtime` that fails in any phase."""

    def __init__(self, runtime: Runtime, builder: FaultyRuntimeBuilder) -> None:
        self._runtime = runtime
        self._builder = builder

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Bootstrap, unless a fault comes between."""
        self._builder.maybe_fail(Fault.BOOTSTRAP_FAILED)
        await self._runtime.bootstrap(env)

    async def diff(self, env: ContainerEnv) -> None:
        """Read the patch, unless a fault comes between."""
        self._builder.maybe_fail(Fault.DIFF_FAILED)
        await self._runtime.diff(env)

    async def eval(self, env: ContainerEnv) -> None:
        """Judge, unless a fault comes between."""
        self._builder.maybe_fail(Fault.EVAL_FAILED)
        await self._runtime.eval(env)
