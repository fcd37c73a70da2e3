"""What the engine's client does on the wire, with an engine on paper."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from docker import APIClient
from requests.exceptions import ConnectionError as NoConnection

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker.address import Address
from agentflow.swe.environment.docker.client import Client
from agentflow.swe.environment.docker.engine import Engine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from urllib.parse import SplitResult

ENGINES_DAY = "1999-12-31T23:59:58.123456789Z"
"""946684798 seconds since the epoch; this machine has another day."""


class PaperEngine:
    """Answers each path with its JSON, and keeps what it was asked."""

    def __init__(self, answers: dict[str, object]) -> None:
        self._answers = answers
        self.asked: dict[str, dict[str, list[str]]] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one connection's one request."""
        request = (await reader.readline()).decode()
        await reader.readuntil(b"\r\n\r\n")
        await self._answer(urlsplit(request.split(" ")[1]), writer)
        writer.close()
        await writer.wait_closed()

    async def _answer(self, url: SplitResult, writer: asyncio.StreamWriter) -> None:
        path = "/" + url.path.rsplit("/", 1)[1]
        self.asked[path] = parse_qs(url.query)
        body = json.dumps(self._answers[path]).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        await writer.drain()


@asynccontextmanager
async def talking_to(paper: PaperEngine, socket: Path) -> AsyncIterator[Engine]:
    """Yield our end of an engine."""
    runner = AsyncioRunner()
    engine = Engine(host=f"unix://{socket}", timeout_s=30, runner=runner)
    async with await asyncio.start_unix_server(paper.serve, socket):
        yield engine
        await engine.close()
    runner.close()


async def test_events_are_asked_for_by_the_engines_clock(tmp_path: Path) -> None:
    """An engine elsewhere may have another time than this machine."""
    paper = PaperEngine(
        {
            "/_ping": "OK",
            "/version": {"ApiVersion": "1.41"},
            "/info": {"SystemTime": ENGINES_DAY},
            "/events": {"Action": "oom"},
        }
    )
    async with talking_to(paper, tmp_path / "engine.sock") as engine:
        assert await engine.oom_events("c", within_s=5) == 1
    asked = paper.asked["/events"]
    assert (asked["since"], asked["until"]) == (["946684793"], ["946684799"])


@pytest.mark.parametrize(
    ("url", "meant"),
    [
        ("unix://", "unix:///var/run/docker.sock"),
        ("unix:///run/d.sock", "unix:///run/d.sock"),
        ("unix://run/d.sock", "unix:///run/d.sock"),
        ("tcp://there", "tcp://there:2375"),
        ("tcp://[::1]:99/", "tcp://[::1]:99"),
        ("https://there", "https://there:2376"),
    ],
)
def test_addresses(url: str, meant: str) -> None:
    """The SDK is told what our own streams take an address for."""
    assert Address.parse(url, {}).url == meant


@pytest.mark.parametrize("url", ["ssh://a", "there:2375", "tcp://:2375", "tcp://a:b", "tcp://a/b"])
def test_addresses_that_are_none(url: str) -> None:
    """The error names the address and what would be one."""
    with pytest.raises(ConfigError, match=rf"{url}.*must be unix:///path or tcp://host:port"):
        Address.parse(url, {})


def leaks(client: APIClient) -> int:
    """Ask an engine that is not there; returns how many sockets were never closed."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        with pytest.raises(NoConnection):
            client.ping()
        client.close()
        gc.collect()
    return sum(issubclass(warning.category, ResourceWarning) for warning in caught)


def test_a_socket_that_finds_nobody_is_closed(tmp_path: Path) -> None:
    """The SDK's own leaks it, which is why there is ours."""
    where = {"base_url": f"unix://{tmp_path}/none.sock", "version": "1.41", "timeout": 5}
    assert leaks(APIClient(**where)) == 1
    assert leaks(Client(**where, max_pool_size=1)) == 0
