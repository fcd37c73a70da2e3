"""SglangEngine: one model on one or several SGLang servers, as the rest of agentflow sees it.

Owns the replicas, their common description and the pause. Every request ends exactly once; an abort
goes to the server that has the request, or the constructor's first connection says that it cannot.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from agentflow.engine.sglang.body import check
from agentflow.engine.sglang.clock import PausableClock
from agentflow.engine.sglang.dispatch import Dispatch
from agentflow.engine.sglang.fleet import Fleet
from agentflow.engine.sglang.flight import Flight
from agentflow.engine.sglang.gate import Gate
from agentflow.engine.sglang.one_replica import OneReplica
from agentflow.engine.sglang.routing import Routing
from agentflow.engine.sglang.weights import PauseMode, WeightSync
from agentflow.errors import EngineAdminFailed, EngineRejected, EngineUnreachable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Self

    from agentflow.engine.sglang.config import SglangConfig
    from agentflow.engine.sglang.load import ReplicaLoad
    from agentflow.engine.sglang.replica import Replica
    from agentflow.protocols import TokenSink
    from agentflow.types import GenerationRequest, GenerationResult, ModelInfo


class SglangEngine:
    """A `Model` on real servers. Connects on first use; belongs to one event loop."""

    def __init__(self, config: SglangConfig) -> None:
        self._clock = PausableClock()
        self._gate = Gate()
        self._fleet = Fleet(config, self._clock)
        self._dispatch = Dispatch(
            Routing(self._fleet.replicas),
            clock=self._clock,
            limit_s=config.deadlines.first_token_s,
        )
        self._weights = WeightSync(
            servers=self._fleet.servers, clock=self._clock, deadlines=config.deadlines
        )
        self._info: ModelInfo | None = None
        self._connecting = asyncio.Lock()
        self._flights: dict[str, Flight] = {}
        self._running = 0
        self._idle = asyncio.Event()
        self._closed = False

    # --- Model --------------------------------------------------------------------------------

    async def info(self) -> ModelInfo:
        """Describe the model; the first call connects. Raises EngineUnreachable, ConfigError."""
        if self._info is None:
            async with self._connecting:
                if self._info is None:
                    self._info = await self._fleet.connect()
        return self._info

    def replicas(self) -> list[OneReplica]:
        """Give each of `urls` by itself, for the worker that fills it (`Replicated`)."""
        return [OneReplica(self, replica) for replica in self._fleet.replicas]

    async def generate(
        self, request: GenerationRequest, sink: TokenSink, *, home: Replica | None = None
    ) -> GenerationResult:
        """Continue `request.input_ids`, at `home` unless it has broken down.

        Raises GenerationAborted after an abort; EngineRejected, ContextFull, EngineUnreachable,
        EngineOverloaded: the request did not run; EngineDied: it ran, the sink has its tokens.
        """
        if self._closed:
            raise EngineUnreachable("the engine is closed")
        rid = request.rid
        if rid in self._flights:
            raise EngineRejected(f"rid {rid!r} is in flight already; a rid names one request")
        other = next(iter(self._flights), rid)
        if len(other) != len(rid):
            raise EngineRejected(
                f"rid {rid!r} must be as long as {other!r}, which is in flight: SGLang aborts "
                "every rid that begins with the one named"
            )
        flight = self._flights[rid] = Flight(rid=rid, home=home)
        try:
            await self._gate.passed(flight)
            check(request, self._info or await self.info())
            return await self._run(request, sink, flight)
        finally:
            del self._flights[rid]

    async def abort(self, rid: str) -> None:
        """Ask that exactly `rid` ends; `generate` confirms it by ending. Harmless afterwards."""
        flight = self._flights.get(rid)
        if flight is not None:
            flight.ask_abort()

    async def close(self) -> None:
        """Drop every connection; generations in flight end with EngineDied. Idempotent."""
        self._closed = True
        self._gate.open()
        await self._fleet.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None:
        await self.close()

    # --- weights ------------------------------------------------------------------------------

    async def pause(self, mode: PauseMode | str) -> None:
        """Stop generating on every replica. Raises EngineAdminFailed; then nothing is paused."""
        if mode not in set(PauseMode):
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(PauseMode)}")
        mode = PauseMode(mode)
        await self.info()
        self._weights.check_running(mode)
        if self._gate.closed:
            raise EngineAdminFailed(f"pause({mode}): a pause in mode drain is under way")
        if mode is PauseMode.DRAIN:
            self._gate.close()
        try:
            if mode is PauseMode.DRAIN:
                await self._drained()
            await self._weights.pause(mode)
        except BaseException:
            self._gate.open()
            raise

    async def resume(self) -> None:
        """Go on generating. Harmless when not paused. Raises EngineAdminFailed."""
        try:
            await self._weights.resume()
        finally:
            self._gate.open()

    @asynccontextmanager
    async def paused(self, mode: PauseMode | str) -> AsyncIterator[None]:
        """Pause for the duration of a block, and resume however it ends."""
        await self.pause(mode)
        try:
            yield
        finally:
            await self.resume()

    async def update_weights_from_disk(self, path: str, *, version: int) -> None:
        """Load the checkpoint at `path` on every replica as `version`. Raises EngineAdminFailed."""
        await self._weights.from_disk(path, version=version)
        self._now_at(version)

    async def update_weights_from_tensor(self, tensors: Sequence[str], *, version: int) -> None:
        """Take SGLang's serialised tensors, one base64 string a rank. Raises EngineAdminFailed."""
        await self._weights.from_tensor(tensors, version=version)
        self._now_at(version)

    async def update_weights_from_distributed(
        self,
        *,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        version: int,
        group: str = "weight_update_group",
    ) -> None:
        """Receive tensors over the trainer's process group. Raises EngineAdminFailed."""
        await self._weights.from_distributed(
            names=names, dtypes=dtypes, shapes=shapes, group=group, version=version
        )
        self._now_at(version)

    async def init_weights_update_group(
        self,
        *,
        address: str,
        port: int,
        world_size: int,
        ranks_each: int = 1,
        group: str = "weight_update_group",
        backend: str = "nccl",
    ) -> None:
        """Join the trainer's process group on every replica; `gloo` is for servers on a CPU.

        Raises EngineAdminFailed.
        """
        await self._weights.init_group(
            address=address,
            port=port,
            world_size=world_size,
            ranks_each=ranks_each,
            group=group,
            backend=backend,
        )

    async def destroy_weights_update_group(self, group: str = "weight_update_group") -> None:
        """Leave the trainer's process group on every replica, so that it can be joined anew."""
        await self._weights.destroy_group(group)

    async def flush(self) -> None:
        """Drop cached prefixes on every replica. Raises EngineAdminFailed."""
        await self._weights.flush()

    def deadlines_held(self) -> AbstractContextManager[None]:
        """Let deadlines of generations stand still while somebody else has paused the servers."""
        return self._clock.held()

    # --- load and health ----------------------------------------------------------------------

    async def loads(self) -> list[ReplicaLoad]:
        """Ask every server for its load; works while paused. Raises EngineAdminFailed."""
        return await self._fleet.loads()

    async def metrics(self) -> list[dict[str, float]]:
        """Read every server's metrics, nothing counted twice. Raises EngineAdminFailed."""
        return await self._fleet.metrics()

    async def generated_tokens(self) -> int:
        """Add up what servers with `--enable-metrics` count. Raises EngineAdminFailed."""
        return int(sum(m.get("sglang:generation_tokens_total", 0.0) for m in await self.metrics()))

    async def unhealthy(self) -> list[str]:
        """Return what is wrong with the servers, a sentence each; empty when all answer."""
        return await self._fleet.unhealthy()

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Wait until every server answers. Raises EngineUnreachable at the deadline."""
        await self._fleet.wait_ready(timeout_s=timeout_s)

    def gauges(self) -> dict[str, int]:
        """Generations in flight and sockets, over all replicas."""
        return self._fleet.gauges()

    # --- inside -------------------------------------------------------------------------------

    async def _run(
        self, request: GenerationRequest, sink: TokenSink, flight: Flight
    ) -> GenerationResult:
        self._running += 1
        self._idle.clear()
        try:
            return await self._dispatch.run(request, sink, flight)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def _drained(self) -> None:
        if self._running:
            await self._idle.wait()

    def _now_at(self, version: int) -> None:
        self._fleet.now_at(version)
        if self._info is not None:
            self._info = replace(self._info, weight_version=version)
