"""AdminClient: the calls of one server that are not token streams, each answered with one body."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp
import orjson

from agentflow.engine.sglang.answers import error_message
from agentflow.engine.sglang.http1 import IDLE_S
from agentflow.errors import EngineAdminFailed

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Mapping, Sequence

T = TypeVar("T")

_OK = 200


class AdminClient:
    """Plain requests and answers; every call has a deadline and names itself when it fails."""

    def __init__(
        self, url: str, *, api_key: str | None, tls: ssl.SSLContext | None, connect_s: float
    ) -> None:
        self.url = url.rstrip("/")
        self._connect_s = connect_s
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tls = tls
        self._session: aiohttp.ClientSession | None = None
        self._closed = False

    async def get(self, path: str, *, timeout_s: float) -> Any:
        """Return the parsed answer of a GET. Raises EngineAdminFailed."""
        return _parsed(await self.text("GET", path, None, timeout_s=timeout_s))

    async def post(self, path: str, body: Mapping[str, Any], *, timeout_s: float) -> Any:
        """Return the parsed answer of a POST. Raises EngineAdminFailed."""
        return _parsed(await self.text("POST", path, body, timeout_s=timeout_s))

    async def text(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float
    ) -> bytes:
        """Return the bytes of an answer with status 200. Raises EngineAdminFailed."""
        where = f"{method} {self.url}{path}"
        status, answer = await self.ask(method, path, body, timeout_s=timeout_s)
        if status != _OK:
            raise EngineAdminFailed(f"{where}: HTTP {status}: {error_message(answer)}")
        return answer

    async def ask(
        self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float
    ) -> tuple[int, bytes]:
        """Return status and bytes. Raises EngineAdminFailed when there is no answer."""
        if self._closed:
            raise EngineAdminFailed(f"{method} {self.url}{path}: the engine is closed")
        data = None if body is None else orjson.dumps(body)
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._connected().request(method, self.url + path, data=data) as answer,
            ):
                return answer.status, await answer.read()
        except aiohttp.ConnectionTimeoutError:
            raise EngineAdminFailed(
                f"{method} {self.url}{path}: no connection in {self._connect_s:g} s"
            ) from None
        except TimeoutError:
            raise EngineAdminFailed(
                f"{method} {self.url}{path}: no answer in {timeout_s:g} s"
            ) from None
        except (aiohttp.ClientError, OSError) as error:
            raise EngineAdminFailed(f"{method} {self.url}{path}: {error}") from error

    def _connected(self) -> aiohttp.ClientSession:
        """Open the session on first use: it belongs to the loop that uses it."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0, ssl=self._tls or True, keepalive_timeout=IDLE_S
                ),
                headers={**self._headers, "Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_s),
            )
        return self._session

    async def close(self) -> None:
        """Close the connections, for good. Idempotent."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()


async def all_of(calls: Sequence[Awaitable[T]]) -> list[T]:
    """Make calls at once and let every one come to its end; raise what failed in one error."""
    ends = await asyncio.gather(*calls, return_exceptions=True)
    failed = [end for end in ends if isinstance(end, BaseException)]
    for error in failed:
        if not isinstance(error, EngineAdminFailed):
            raise error
    if failed:
        raise EngineAdminFailed("; ".join(str(error) for error in failed)) from failed[0]
    return [end for end in ends if not isinstance(end, BaseException)]


def _parsed(answer: bytes) -> Any:
    if not answer:
        return None
    try:
        return orjson.loads(answer)
    except orjson.JSONDecodeError:
        return answer.decode("utf-8", errors="replace")
