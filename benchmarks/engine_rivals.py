"""The clients that one would write without SglangEngine, for comparison in `engine_client`.

Each posts the ids as JSON, reads the stream line by line and collects ids and log-probs; but for
`OverAiohttp`, which tells what our own HTTP is worth at least: its token path is ours.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Protocol

import aiohttp
import httpx
import numpy as np
import orjson

from agentflow.engine.sglang import SglangConfig, SglangEngine
from agentflow.engine.sglang.body import check, encode
from agentflow.engine.sglang.events import EventBuffer
from agentflow.engine.sglang.tokens import TokenStream
from agentflow.engine.token_record import TokenRecord
from agentflow.types import GenerationRequest, ModelInfo, SamplingParams
from benchmarks.engine_server import VOCAB

if TYPE_CHECKING:
    from collections.abc import Callable

_INFO = ModelInfo(name="m", vocab_size=VOCAB, context_length=131_066)
PARAMS: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 4096}


class Client(Protocol):
    """One way to generate."""

    async def generate(self, number: int, ids: list[int]) -> int:
        """Run one generation; returns its tokens."""
        ...

    async def close(self) -> None:
        """Close connections."""
        ...


class Ours:
    """SglangEngine, into a TokenRecord."""

    def __init__(self, url: str) -> None:
        self._engine = SglangEngine(SglangConfig(urls=(url,), vocab_size=VOCAB))

    async def generate(self, number: int, ids: list[int]) -> int:
        """Send a buffer, as an episode's record is one."""
        return await self.generate_into(TokenRecord(), number, ids)

    async def generate_into(self, record: TokenRecord, number: int, ids: list[int]) -> int:
        """Run one generation into `record`."""
        await self._engine.generate(_request(number, ids), record)
        return len(record)

    async def close(self) -> None:
        """Close the engine."""
        await self._engine.close()


_BUFFERS: dict[int, np.ndarray[Any, np.dtype[np.int32]]] = {}


def _buffer(ids: list[int]) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return `ids` as the array that a TokenRecord would hold; made once for each list."""
    if id(ids) not in _BUFFERS:
        _BUFFERS[id(ids)] = np.asarray(ids, np.int32)
    return _BUFFERS[id(ids)]


def _request(number: int, ids: list[int]) -> GenerationRequest:
    return GenerationRequest(
        rid=f"{0:012x}-{number:016x}-0000-000000",
        input_ids=_buffer(ids),
        sampling=SamplingParams(max_new_tokens=4096),
    )


def _body(number: int, ids: list[int]) -> dict[str, Any]:
    return {
        "rid": f"{number:042x}",
        "input_ids": ids,
        "sampling_params": PARAMS,
        "return_logprob": True,
        "stream": True,
    }


class Collector:
    """Tokens of one generation from the lines of its stream."""

    def __init__(self, loads: Callable[[bytes], Any]) -> None:
        self._loads = loads
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def line(self, line: bytes) -> None:
        """Take one line."""
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            return
        event = self._loads(line[6:])
        self.ids += event["output_ids"]
        self.logprobs += [pair[0] for pair in event["meta_info"]["output_token_logprobs"]]


class Aiohttp:
    """aiohttp, with the standard library's JSON or with orjson."""

    def __init__(self, url: str, *, fast_json: bool) -> None:
        self._url = url + "/generate"
        self._fast = fast_json
        self._session: aiohttp.ClientSession | None = None

    async def generate(self, number: int, ids: list[int]) -> int:
        """Post and read lines."""
        session = self._connected()
        body: dict[str, Any] = _body(number, ids)
        if self._fast:
            body["input_ids"] = _buffer(ids)
            data = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        else:
            data = json.dumps(body).encode()
        collector = Collector(orjson.loads if self._fast else json.loads)
        async with session.post(self._url, data=data) as response:
            async for line in response.content:
                collector.line(line)
        return len(collector.ids)

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0)
            timeout = aiohttp.ClientTimeout(total=None)
            self._session = aiohttp.ClientSession(connector=connector, timeout=timeout)
        return self._session

    async def close(self) -> None:
        """Close the session."""
        if self._session is not None:
            await self._session.close()


class OverAiohttp(Aiohttp):
    """Our request body, parser and record over aiohttp; without deadlines, aborts and retries."""

    async def generate(self, number: int, ids: list[int]) -> int:
        """Post and read whatever has come."""
        session = self._connected()
        request = _request(number, ids)
        check(request, _INFO)
        record, events = TokenRecord(), EventBuffer()
        tokens = TokenStream(record, version="default")
        data = encode(request, stream_interval=None)
        async with session.post(self._url, data=data) as response:
            async for part in response.content.iter_any():
                tokens.take(events.feed([part]))
        return len(record)


class Httpx:
    """httpx, as its documentation shows it."""

    def __init__(self, url: str) -> None:
        self._url = url + "/generate"
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._client = httpx.AsyncClient(limits=limits, timeout=None)  # noqa: S113  # local server

    async def generate(self, number: int, ids: list[int]) -> int:
        """Post and read lines."""
        collector = Collector(json.loads)
        async with self._client.stream("POST", self._url, json=_body(number, ids)) as response:
            async for line in response.aiter_lines():
                collector.line(line.encode())
        return len(collector.ids)

    async def close(self) -> None:
        """Close the client."""
        await self._client.aclose()


CLIENTS: dict[str, Callable[[str], Client]] = {
    "ours": Ours,
    "over_aiohttp": lambda url: OverAiohttp(url, fast_json=True),
    "aiohttp_orjson": lambda url: Aiohttp(url, fast_json=True),
    "aiohttp_json": lambda url: Aiohttp(url, fast_json=False),
    "httpx": Httpx,
}
