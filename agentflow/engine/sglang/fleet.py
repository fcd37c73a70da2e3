"""Fleet: the servers of one engine: connecting to them, what they say, how they are.

Owns the replicas and, behind a router, the clients of its workers. An abort or a weight update
goes to the servers that hold requests and weights; where their addresses cannot be learnt,
`connect` says so.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from agentflow.engine.sglang.admin import AdminClient, all_of
from agentflow.engine.sglang.describe import agreed, describe, workers_behind
from agentflow.engine.sglang.http1 import Address
from agentflow.engine.sglang.load import ReplicaLoad, load_of, metrics_of
from agentflow.engine.sglang.replica import Replica
from agentflow.errors import ConfigError, EngineAdminFailed, EngineUnreachable

if TYPE_CHECKING:
    from agentflow.engine.sglang.clock import PausableClock
    from agentflow.engine.sglang.config import SglangConfig
    from agentflow.types import ModelInfo

_POLL_S = 0.5


class Fleet:
    """All servers of one engine."""

    def __init__(self, config: SglangConfig, clock: PausableClock) -> None:
        self._config = config
        self._clock = clock
        self._tls = _tls(config)
        self.replicas = [self._replica(url) for url in config.urls]
        """Where generations go."""
        self.servers = [replica.admin for replica in self.replicas]
        """Where weights are: the replicas, or the workers behind them."""

    async def connect(self) -> ModelInfo:
        """Learn what the servers are. Raises EngineUnreachable, ConfigError."""
        limit = self._config.deadlines.admin_s
        for replica in self.replicas:
            await self._look_behind(replica, limit)
        vocab_size = self._config.vocab_size
        found = await all_of(
            [describe(s, vocab_size=vocab_size, timeout_s=limit) for s in self.servers]
        )
        infos = {server: info for server, (info, _) in zip(self.servers, found, strict=True)}
        for replica in self.replicas:
            replica.version = found[0][1]
            replica.info = agreed([infos[server] for server in replica.abort_targets])
        return agreed(list(infos.values()))

    def now_at(self, version: int) -> None:
        """Take notice of a weight update that this engine made."""
        for replica in self.replicas:
            replica.version = str(version)

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        for replica in self.replicas:
            await replica.close()
        for server in self.servers:
            await server.close()

    # --- load and health ----------------------------------------------------------------------

    async def loads(self) -> list[ReplicaLoad]:
        """Ask every server for its load; works while paused. Raises EngineAdminFailed."""
        limit = self._config.deadlines.admin_s
        answers = await all_of([s.get("/v1/loads", timeout_s=limit) for s in self.servers])
        return [load_of(s.url, answer) for s, answer in zip(self.servers, answers, strict=True)]

    async def metrics(self) -> list[dict[str, float]]:
        """Read every server's metrics, nothing counted twice. Raises EngineAdminFailed."""
        limit = self._config.deadlines.admin_s
        texts = await all_of(
            [s.text("GET", "/metrics", None, timeout_s=limit) for s in self.servers]
        )
        return [metrics_of(text.decode("utf-8", errors="replace")) for text in texts]

    async def unhealthy(self) -> list[str]:
        """Return what is wrong with the servers, a sentence each; empty when all answer.

        Asks for loads: unlike `/health` they cost no token and are answered while paused.
        """
        limit = self._config.deadlines.admin_s
        ends = await asyncio.gather(
            *(s.get("/v1/loads", timeout_s=limit) for s in self.servers), return_exceptions=True
        )
        return [str(end) for end in ends if isinstance(end, EngineAdminFailed)]

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Wait until every server answers. Raises EngineUnreachable at the deadline."""
        problems = ["no answer yet"]
        try:
            async with asyncio.timeout(timeout_s):
                while problems := await self.unhealthy():  # noqa: ASYNC110  # they do not call us
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise EngineUnreachable(
                f"not ready after {timeout_s:g} s: {'; '.join(problems)}"
            ) from None

    def gauges(self) -> dict[str, int]:
        """Generations in flight and sockets, over all replicas."""
        total: dict[str, int] = {}
        for replica in self.replicas:
            for name, value in replica.gauges().items():
                total[name] = total.get(name, 0) + value
        return total

    # --- inside -------------------------------------------------------------------------------

    async def _look_behind(self, replica: Replica, limit: float) -> None:
        """Send aborts and weights to the workers themselves where the url is a router's."""
        if replica.admin not in self.servers:
            return  # they are known, from a connection that failed later
        urls = await workers_behind(replica.admin, timeout_s=limit)
        if urls is None:
            return
        if not urls:
            raise ConfigError(f"urls: the router {replica.url} has no workers")
        workers = [self._admin(url) for url in urls]
        replica.abort_targets = workers
        at = self.servers.index(replica.admin)
        self.servers[at : at + 1] = workers

    def _admin(self, url: str) -> AdminClient:
        config = self._config
        connect_s = config.deadlines.connect_s
        return AdminClient(url, api_key=config.api_key, tls=self._tls, connect_s=connect_s)

    def _replica(self, url: str) -> Replica:
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        address = Address(
            host=parts.hostname or "",
            port=parts.port or (443 if secure else 80),
            path=parts.path.rstrip("/"),
            tls=self._tls if secure else None,
        )
        admin = self._admin(url)
        return Replica(address=address, admin=admin, config=self._config, clock=self._clock)


def _tls(config: SglangConfig) -> ssl.SSLContext | None:
    if not any(url.startswith("https:") for url in config.urls):
        return None
    try:
        return ssl.create_default_context(cafile=config.ca_file)
    except OSError as error:
        raise ConfigError(f"ca_file: {config.ca_file!r} cannot be read: {error}") from error
