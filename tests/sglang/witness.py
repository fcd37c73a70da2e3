"""Witness: stands between a client and a server, passes everything on, and remembers generations.

What the server said is read here with the standard library alone, apart from the client under test.
"""

from __future__ import annotations

import json
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
import numpy as np
from aiohttp import web

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

_JSON = {"Content-Type": "application/json"}
_LENGTHS = {"Content-Length", "Transfer-Encoding"}


@dataclass
class Generation:
    """One request, and what the server answered."""

    rid: str
    input_ids: list[int]
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    """Of every token; as the last event says."""
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


def check_run(run_dir: Path, generations: list[Generation]) -> int:
    """Assert that every sample holds what the server reported, token by token.

    Each sample's requests, in the order of their rids, are played over its tokens: a request must
    have been sent exactly the tokens so far, and the tokens behind them must be the server's, with
    its log-probs and versions; everything else must be rendered (mask 0). Returns how many tokens
    were generated.
    """
    total = 0
    rids = [generation.rid for generation in generations]
    assert len(set(rids)) == len(rids)
    for line in (run_dir / "samples.jsonl").read_text().splitlines():
        sample = json.loads(line)
        assert not sample["forks"]
        mine = [g for g in generations if g.rid.split("-")[1] == sample["key"]]
        with np.load(run_dir / sample["tokens"]) as arrays:
            total += _check_sample(dict(arrays), mine)
    return total


def _check_sample(arrays: dict[str, Any], generations: list[Generation]) -> int:
    ids = [*arrays["prompts"].tolist(), *arrays["responses"].tolist()]
    start = len(arrays["prompts"])
    mask = np.zeros(len(ids), np.int8)
    logprobs = np.zeros(len(ids), np.float32)
    versions = np.full(len(ids), -1, np.int32)
    for seen in sorted(generations, key=lambda g: g.rid):
        at, end = len(seen.input_ids), len(seen.input_ids) + len(seen.ids)
        assert seen.input_ids == ids[:at]
        assert seen.ids == ids[at:end]
        assert not mask[at:end].any()
        mask[at:end], logprobs[at:end], versions[at:end] = 1, seen.logprobs, seen.versions
    np.testing.assert_array_equal(arrays["response_mask"], mask[start:])
    np.testing.assert_array_equal(arrays["rollout_log_prob"], logprobs[start:])
    np.testing.assert_array_equal(arrays["weight_versions"], versions[start:])
    return int(mask.sum())
