"""FakeSglang: an HTTP server that speaks SGLang's wire, well or, on demand, badly.

For fast tests and for demonstrations without a model. It listens on a free local port from entering
to leaving its `async with` block, decodes one token per running request every `step_s` seconds, and
what it does wrong stands in `faults`.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from aiohttp import web

from agentflow.engine.fake_sglang import wire
from agentflow.engine.fake_sglang.faults import Faults
from agentflow.engine.fake_sglang.model import FakeModel
from agentflow.engine.fake_sglang.scheduler import FakeRequest, FakeScheduler

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

_MODES = {"abort", "in_place", "retract"}
_DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeOptions:
    """How the server was started."""

    model: FakeModel = field(default_factory=FakeModel)
    slots: int = 8
    """`--max-running-requests`."""
    max_queued: int | None = None
    """`--max-queued-requests`."""
    kv_tokens: int = 65_536
    incremental: bool = True
    """`--incremental-streaming-output`."""
    priority: bool = True
    """`--enable-priority-scheduling`."""
    step_s: float = 0.0
    """Seconds between two tokens of a request; 0 as fast as the loop turns."""
    api_key: str | None = None
    tls: ssl.SSLContext | None = None
    version: str = "default"
    workers: tuple[str, ...] = ()
    """Urls to name under `/workers`, as a router does."""


class FakeSglang:
    """One server; `async with FakeSglang() as server: server.url`."""

    def __init__(self, options: FakeOptions | None = None) -> None:
        self.options = options or FakeOptions()
        self.faults = Faults()
        self.scheduler = FakeScheduler(
            self.options.model,
            slots=self.options.slots,
            max_queued=self.options.max_queued,
            version=self.options.version,
        )
        self.bodies: list[dict[str, Any]] = []
        """Every /generate body received."""
        self.calls: list[str] = []
        """Paths of all other calls, in order."""
        self.ended: list[FakeRequest] = []
        """Requests that finished or whose client went away."""
        self._changed = asyncio.Condition()
        self._transports: set[asyncio.BaseTransport] = set()
        self._stack: asyncio.TaskGroup | None = None
        self._port = 0
        self._dead = False

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"{'https' if self.options.tls else 'http'}://127.0.0.1:{self._port}"
