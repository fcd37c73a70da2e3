"""A server that answers /generate from memory, for `benchmarks.engine_client`.

usage: python -m benchmarks.engine_server EVENTS TOKENS INTERVAL_S STAGGERED

Each answer is EVENTS events of TOKENS tokens, incremental, as SGLang sends them; one write each,
every INTERVAL_S seconds, or one for each turn of the loop when that is 0. The loop is uvloop's, as
SGLang's own is: a slower one takes turns with the client at every event, and what is measured then
is that. The i-th of the first STAGGERED answers has only the share i/STAGGERED of the events, so
that open streams end one after the other. Prints its port.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any, cast

import orjson
import uvloop

VOCAB = 151_936
PATHS: dict[str, dict[str, Any]] = {
    "/model_info": {"model_path": "m", "served_model_name": "m", "weight_version": "default"},
    "/server_info": {"max_total_num_tokens": 1 << 24, "max_req_input_len": 131_066},
    "/v1/models": {"data": [{"id": "m", "max_model_len": 131_072}]},
}


def answer_events(events: int, tokens: int) -> list[bytes]:
    """Return the chunks of one whole answer."""
    return [_chunk(_event(number, events, tokens)) for number in range(events)]


def _event(number: int, events: int, tokens: int) -> bytes:
    first, last = number * tokens, (number + 1) * tokens
    ids = [1000 + i * 7919 % 150_000 for i in range(first, last)]
    meta: dict[str, Any] = {
        "id": "8b5cf9b15a5c-0f3a61d7c1f04a52-0000-000001",
        "finish_reason": None,
        "prompt_tokens": 32_768,
        "weight_version": "default",
        "num_retractions": 0,
        "storage_prefetch_wait": 0.0,
        "storage_staging_wait": 0.0,
        "forward_entry_time": 1795999788.4336252,
        "prefill_finished_time": 1795999788.4761872,
        "queue_time": 0.0006268000001909968,
        "input_token_logprobs": [],
        "output_token_logprobs": [[-0.05869162082672119 - i % 97 / 50, i, None] for i in ids],
        "output_token_logprobs_length": last,
        "reasoning_tokens": 0,
        "completion_tokens": last,
        "cached_tokens": 32_767,
        "cached_tokens_details": {"device": 32_767, "host": 0},
        "dp_rank": None,
    }
    if number == events - 1:
        meta["finish_reason"] = {"type": "length", "length": last}
        meta["weight_versions"] = [{"version": "default", "start": 0, "end": last}]
    event = {"text": " word" * tokens, "output_ids": ids, "meta_info": meta}
    return b"data: " + orjson.dumps(event) + b"\n\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
_TAIL = _chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n"


class Answers:
    """What is sent, and how fast."""

    def __init__(self, events: int, tokens: int, interval_s: float, staggered: int) -> None:
        self.events = answer_events(events, tokens)
        self.interval_s = interval_s
        self._tokens = tokens
        self._staggered = staggered
        self._given = 0
        self._endings: dict[int, bytes] = {}

    def next_answer(self) -> list[bytes]:
        """Return the events of the next answer; the last one always ends it."""
        self._given += 1
        if self._given >= self._staggered:
            return self.events
        length = max(1, len(self.events) * self._given // self._staggered)
        return [*self.events[: length - 1], self._ending(length)]

    def _ending(self, length: int) -> bytes:
        """Return the last of `length` events."""
        if length not in self._endings:
            self._endings[length] = _chunk(_event(length - 1, length, self._tokens))
        return self._endings[length]


class Connection(asyncio.Protocol):
    """One client's socket."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._head = b""
        self._missing = 0
        self._path = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not of that class

    def data_received(self, data: bytes) -> None:
        """Count the request in, then answer."""
        if self._missing:
            self._missing -= len(data)
        else:
            head, found, body = (self._head + data).partition(b"\r\n\r\n")
            if not found:
                self._head = head
                return
            self._head = b""
            self._path = head.split(b" ", 2)[1].decode()
            self._missing = _content_length(head) - len(body)
        if not self._missing:
            self._answer()

    def _answer(self) -> None:
        if self._path == "/generate":
            self._transport.write(_HEAD)
            self._send(self._answers.next_answer(), 0)
            return
        found = self._path in PATHS
        body = json.dumps(PATHS.get(self._path, {})).encode()
        status = b"200 OK" if found else b"404 Not Found"
        self._transport.write(
            b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)
        )

    def _send(self, events: list[bytes], number: int) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(events[number])
        if number + 1 == len(events):
            self._transport.write(_TAIL)
            return
        loop = asyncio.get_running_loop()
        loop.call_later(self._answers.interval_s, self._send, events, number + 1)


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return int(value)
    return 0


async def serve(answers: Answers) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(answers), "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    _EVENTS, _TOKENS, _INTERVAL, _STAGGERED = sys.argv[1:]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as _RUNNER:
        _RUNNER.run(serve(Answers(int(_EVENTS), int(_TOKENS), float(_INTERVAL), int(_STAGGERED))))
