"""WeightSync: pause, update, flush and resume, on every replica of an engine.

Owns whether the engine is paused and how. Invariants: while it is, the deadlines of generations
stand still; a pause that fails on one replica leaves none paused, or says which; KV that was kept
by `in_place` is never flushed, because the server refuses to.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from agentflow.engine.sglang.admin import all_of
from agentflow.errors import EngineAdminFailed
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from agentflow.engine.sglang.admin import AdminClient
    from agentflow.engine.sglang.clock import PausableClock
    from agentflow.engine.sglang.config import Deadlines


PauseMode = SyncMode
"""What happens to running generations when the engine is paused.

Drained, new ones wait on this side until `resume`. In place, SGLang's overlapped scheduler has one
token of each in flight at that moment and reports the new version for it.
"""

_ON_THE_WIRE = {
    PauseMode.DRAIN: (PauseMode.RETRACT,),
    PauseMode.ABORT: (PauseMode.ABORT, PauseMode.RETRACT),
}
"""The server's own pauses for a mode, where it is not the one of that name.

The overlapped scheduler is a step ahead of the answers: for that long after the last request has
ended nothing can be flushed, by an update neither. Retracting waits for that step; aborting does
not.
"""


class WeightSync:
    """The weights of all servers of one engine."""

    def __init__(
        self, *, servers: Sequence[AdminClient], clock: PausableClock, deadlines: Deadlines
    ) -> None:
        self._servers = servers
        self._clock = clock
        self._deadlines = deadlines
        self.mode: PauseMode | None = None
        """How the engine is paused; None while it runs."""

    async def pause(self, mode: PauseMode) -> None:
        """Stop generating. Raises EngineAdminFailed; then no replica stays paused."""
        self.check_running(mode)
        self._clock.hold()
        self.mode = mode
        try:
            for wire in _ON_THE_WIRE.get(mode, (mode,)):
                await self._on_all("/pause_generation", {"mode": wire}, self._deadlines.pause_s)
        except BaseException as error:
            try:
                await self.resume()
            except EngineAdminFailed as second:
                error.add_note(f"and resuming failed: {second}")
            raise

    def check_running(self, mode: PauseMode) -> None:
        """Raise EngineAdminFailed when a pause has an owner already."""
        if self.mode is not None:
            raise EngineAdminFailed(f"pause({mode}): paused already, in mode {self.mode}")

    async def resume(self) -> None:
        """Go on generating; harmless when not paused.

        Raises EngineAdminFailed naming the servers that may still be paused. Deadlines run again
        either way, so that nothing waits on such a server for ever; calling again tries again.
        """
        try:
            await self._on_all("/continue_generation", {}, self._deadlines.admin_s)
        finally:
            if self.mode is not None:
                self.mode = None
                self._clock.release()

    @asynccontextmanager
    async def paused(self, mode: PauseMode) -> AsyncIterator[None]:
        """Pause for the duration of a block, and resume however it ends."""
        await self.pause(mode)
        try:
            yield
        finally:
            await self.resume()

    async def from_disk(self, path: str, *, version: int) -> None:
        """Load a checkpoint that every server finds at `path`; it is `version` from then on."""
        await self._update("/update_weights_from_disk", {"model_path": path}, version)

    async def from_tensor(self, tensors: Sequence[str], *, version: int) -> None:
        """Take tensors serialised by SGLang, one base64 string for each tensor-parallel rank."""
        body = {"serialized_named_tensors": list(tensors)}
        await self._in_session("/update_weights_from_tensor", body, version)

    async def from_distributed(
        self,
        *,
        names: Sequence[str],
        dtypes: Sequence[str],
        shapes: Sequence[Sequence[int]],
        group: str,
        version: int,
    ) -> None:
        """Receive tensors over the process group that `init_group` set up; the trainer sends."""
        body = {
            "names": list(names),
            "dtypes": list(dtypes),
            "shapes": [list(shape) for shape in shapes],
            "group_name": group,
        }
        await self._in_session("/update_weights_from_distributed", body, version)

    async def init_group(
        self,
        *,
        address: str,
        port: int,
        world_size: int,
        ranks_each: int,
        group: str,
        backend: str,
    ) -> None:
        """Join the trainer's process group: rank 0 is the trainer, `ranks_each` per server."""

        async def join(index: int, server: AdminClient) -> None:
            body = {
                "master_address": address,
                "master_port": port,
                "rank_offset": 1 + index * ranks_each,
                "world_size": world_size,
                "group_name": group,
                "backend": backend,
            }
            await _succeed(server, "/init_weights_update_group", body, self._deadlines.update_s)

        await all_of([join(index, server) for index, server in enumerate(self._servers)])

    async def destroy_group(self, group: str) -> None:
        """Leave a process group, whose name is free again afterwards."""
        await self._on_all_succeed("/destroy_weights_update_group", {"group_name": group})

    async def flush(self) -> None:
        """Drop cached prefixes. Raises EngineAdminFailed where something runs, also in place.

        A pause in any other mode makes it possible.
        """
        await self._on_all("/flush_cache", {}, self._deadlines.admin_s)

    async def _in_session(self, path: str, body: Mapping[str, Any], version: int) -> None:
        """Update inside the session that SGLang wants around tensors, and close it in any case.

        Opened everywhere before anything is sent: a collective would wait for who is missing.
        """
        try:
            await self._on_all_succeed("/begin_weight_update", {})
            await self._update(path, body, version)
        except BaseException as error:
            try:
                await self._on_all_succeed("/end_weight_update", {})
            except EngineAdminFailed as second:
                error.add_note(f"and closing the update failed: {second}")
            raise
        await self._on_all_succeed("/end_weight_update", {})

    async def _update(self, path: str, body: Mapping[str, Any], version: int) -> None:
        if version < 0:
            raise EngineAdminFailed(f"weight version {version} must not be negative")
        whole = {
            **body,
            "weight_version": str(version),
            "flush_cache": self.mode is not PauseMode.IN_PLACE,
        }
        await self._on_all_succeed(path, whole)

    async def _on_all_succeed(self, path: str, body: Mapping[str, Any]) -> None:
        await all_of([_succeed(s, path, body, self._deadlines.update_s) for s in self._servers])

    async def _on_all(self, path: str, body: Mapping[str, Any], timeout_s: float) -> None:
        await all_of([s.post(path, body, timeout_s=timeout_s) for s in self._servers])


async def _succeed(
    server: AdminClient, path: str, body: Mapping[str, Any], timeout_s: float
) -> None:
    """Make a call whose answer says whether it worked."""
    answer = await server.post(path, body, timeout_s=timeout_s)
    if not (isinstance(answer, dict) and answer.get("success") is True):
        message = answer.get("message", answer) if isinstance(answer, dict) else answer
        raise EngineAdminFailed(f"POST {server.url}{path}: {message}")
