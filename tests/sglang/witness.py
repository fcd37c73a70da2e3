"""Witness: stands between a client and a server, passes everything on, and remembers generations.

What the server said is read here with the standard library alone, apart from the client under test.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import aiohttp
import token_witness
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_JSON = {"Content-Type": "application/json"}
_LENGTHS = {"Content-Length", "Transfer-Encoding"}


@dataclass
class Generation(token_witness.Generation):
    """One request, and what the server answered."""

    finish: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        """Take one event of an incremental server.

        One whose ids do not add up is the end of a retracted request: it repeats, behind what was
        not sent yet, the last id and the log-probs of all tokens.
        """
        meta = event["meta_info"]
        ids, pairs, total = (
            event["output_ids"],
            meta["output_token_logprobs"],
            meta["completion_tokens"],
        )
        if len(self.ids) + len(ids) != total:
            assert len(pairs) == len(ids) - 1 + total
            record = pairs[len(ids) - 1 :]
            assert ids[-1] == record[-1][1]
            assert [pair[:2] for pair in record[: len(self.ids)]] == [
                [logprob, token] for token, logprob in zip(self.ids, self.logprobs, strict=True)
            ]
            pairs = record[len(self.ids) :]
            assert ids[:-1] == [pair[1] for pair in pairs]
            ids = ids[:-1]
        self.ids += ids
        self.logprobs += [pair[0] for pair in pairs]
        self.finish = meta["finish_reason"]
        for part in meta.get("weight_versions", []):
            number = 0 if part["version"] == "default" else int(part["version"])
            self.versions += [number] * (part["end"] - part["start"])


class Witness:
    """A proxy in front of the server at `upstream`."""

    def __init__(self, upstream: str) -> None:
        self._upstream = upstream
        self.url = ""
        self.generations: list[Generation] = []
        self.calls: list[str] = []
        """Paths of all other calls."""

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[Witness]:
        """Serve for the duration of a block."""
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("POST", "/generate", self._generate)
        app.router.add_route("*", "/{path:.*}", self._pass_on)
        async with AsyncExitStack() as stack:
            self._session = await stack.enter_async_context(
                aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(limit=0),
                    timeout=aiohttp.ClientTimeout(total=None),
                )
            )
            runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            yield self

    async def _pass_on(self, request: web.Request) -> web.Response:
        self.calls.append(request.path)
        body = await request.read()
        async with self._session.request(
            request.method, self._upstream + request.path, data=body, headers=_JSON
        ) as answer:
            kind = answer.headers.get("Content-Type", "text/plain")
            headers = {"Content-Type": kind}
            return web.Response(status=answer.status, body=await answer.read(), headers=headers)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        asked = json.loads(body)
        seen = Generation(rid=asked["rid"], input_ids=asked["input_ids"])
        self.generations.append(seen)
        async with self._session.post(
            self._upstream + "/generate", data=body, headers=_JSON
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k not in _LENGTHS}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    seen.take(json.loads(line[6:]))
                await response.write(line)
        return response
