"""Flight: one `generate` from the caller's side, over waiting, retries and the request itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.errors import GenerationAborted

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.engine.sglang.replica import Replica


@dataclass(slots=True, kw_only=True)
class Flight:
    """Remembers that somebody wished it to end, and wakes whoever works on it now."""

    rid: str
    home: Replica | None = None
    """The replica that its worker fills; None: any that is least busy, and then the same again."""
    abort_asked: bool = False
    wake: Callable[[], None] | None = None
    """Called at the wish; set by whoever waits on the flight's behalf."""

    def ask_abort(self) -> None:
        """Wish that it ends. Idempotent."""
        self.abort_asked = True
        if self.wake is not None:
            self.wake()

    def check(self) -> None:
        """Raise GenerationAborted when it need not be sent any more."""
        if self.abort_asked:
            raise GenerationAborted("aborted before it was sent")
