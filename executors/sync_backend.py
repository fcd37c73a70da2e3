"""SyncRolloutBackend: a RolloutBackend for code without an event loop.

The backend lives on a thread of its own; every call here waits for its end there. One caller at a
time, as trainers are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Self, TypeVar

from agentflow.runner import LoopThread
from agentflow.types import SyncMode

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Mapping, Sequence
    from types import TracebackType

    from executors.backend import RolloutBackend
    from executors.data.groups import Group
    from executors.data.prompts import Prompt

T = TypeVar("T")


class SyncRolloutBackend:
    """The same calls, blocking. A context manager: it starts and closes."""

    def __init__(self, backend: RolloutBackend) -> None:
        self._backend = backend
        self._thread: LoopThread | None = None
        self.tasks = backend.tasks
        """The rows of `tasks.source`, to make prompts of."""

    def start(self) -> None:
        """Reach the engine and start working. Raises ConfigError."""
        if self._thread is None:
            self._thread = LoopThread("agentflow-backend")
        try:
            self._call(self._backend.start())
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End what runs and remove every environment. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            try:
                asyncio.run_coroutine_threadsafe(self._backend.close(), thread.loop).result()
            finally:
                thread.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def submit(self, prompts: Sequence[Prompt], *, n: int | None = None) -> list[str]:
        """Issue prompts; see `RolloutBackend.submit`."""
        return self._call(_called(lambda: self._backend.submit(prompts, n=n)))

    def groups(self) -> Iterator[Group]:
        """Yield complete groups, waiting for them; ends after `finish`."""
        groups = self._backend.groups()
        while (group := self._call(_next(groups))) is not None:
            yield group

    def step(
        self, prompts: Sequence[Prompt], *, n: int | None = None, enough: int | None = None
    ) -> list[Group]:
        """Issue prompts and wait for their groups; see `RolloutBackend.step`."""
        return self._call(self._backend.step(prompts, n=n, enough=enough))

    def validate(self, prompts: Sequence[Prompt], *, n: int = 1) -> list[Group]:
        """Roll prompts out before all others, not for training."""
        return self._call(self._backend.validate(prompts, n=n))

    def ack(self, group: Group) -> None:
        """Say that the trainer has used a group."""
        self._call(self._backend.ack(group))

    def finish(self) -> None:
        """Say that nothing more will be submitted."""
        self._call(_called(self._backend.finish))

    def pause(self, mode: SyncMode | str = SyncMode.ABORT) -> None:
        """Let no generation run; see `RolloutBackend.pause`."""
        self._call(self._backend.pause(mode))

    def resume(self) -> None:
        """Go on generating."""
        self._call(self._backend.resume())

    def weights_updated(self, version: int) -> None:
        """Say which version the weights are now."""
        self._call(_called(lambda: self._backend.weights_updated(version)))

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint needs."""
        return self._call(_called(self._backend.state_dict))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state, before `start`."""
        self._backend.load_state_dict(state)

    def metrics(self) -> dict[str, float]:
        """Give the gauges of the parts."""
        return self._call(_called(self._backend.metrics))

    def _call(self, coro: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            coro.close()
            raise RuntimeError("the backend is not started: call start() first")
        waiting = asyncio.run_coroutine_threadsafe(coro, self._thread.loop)
        try:
            return waiting.result()
        except BaseException:  # Ctrl-C must not leave the call running
            waiting.cancel()
            raise


async def _called(call: Any) -> Any:
    return call()


async def _next(groups: Any) -> Group | None:
    try:
        group: Group = await anext(groups)
    except StopAsyncIteration:
        return None
    return group
