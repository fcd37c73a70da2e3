"""HTTP/1.1 as far as we need it: any cut of the bytes, any framing, reuse only when it is safe."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentflow.engine.sglang.http1 import Address, BadHttp, Connection, Pool


class Answer:
    """A receiver that remembers."""

    def __init__(self) -> None:
        self.status = 0
        self.body = b""
        self.ended = False
        self.lost: Exception | str | None = "no"

    def on_status(self, status: int) -> None:
        """Remember the status."""
        self.status = status

    def on_body(self, pieces: list[bytes]) -> None:
        """Remember bytes."""
        self.body += b"".join(pieces)

    def on_end(self) -> None:
        """Remember the end."""
        assert not self.ended
        self.ended = True

    def on_lost(self, reason: Exception | None) -> None:
        """Remember the loss."""
        self.lost = reason


class Wire(asyncio.Transport):
    """A transport that goes nowhere."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def writelines(self, list_of_data: object) -> None:
        """Drop the request."""

    def is_closing(self) -> bool:
        """Whether `abort` was called."""
        return self.closed

    def abort(self) -> None:
        """Remember that it was called."""
        self.closed = True


async def receive(whole: bytes, cuts: list[int]) -> tuple[Answer, Wire]:
    """Feed `whole`, cut at `cuts`, to a connection that waits for an answer."""
    pool = Pool(Address(host="x", port=1), connect_s=1)
    connection, wire, answer = Connection(pool), Wire(), Answer()
    connection.connection_made(wire)
    connection.send([b"request"], answer)
    last = 0
    for cut in [*sorted(min(c, len(whole)) for c in cuts), len(whole)]:
        if cut > last:
            connection.received(whole[last:cut])
        last = cut
    return answer, wire


@settings(max_examples=60)
@example(chunks=[b"a"] * 6, cuts=[56, 86], extension=b"")  # ends inside the final CRLF
@given(
    chunks=st.lists(st.binary(min_size=1, max_size=40), max_size=6),
    cuts=st.lists(st.integers(0, 500), max_size=10),
    extension=st.sampled_from([b"", b";a=b"]),
)
def test_chunks_survive_any_cut(chunks: list[bytes], cuts: list[int], extension: bytes) -> None:
    """However the bytes are cut, the body is the chunks' bytes and ends once."""
    framed = b"".join(b"%x%b\r\n%b\r\n" % (len(c), extension, c) for c in chunks)
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n" + framed + b"0\r\n\r\n"
    answer, wire = asyncio.run(receive(whole, cuts))
    assert (answer.status, answer.body, answer.ended) == (200, b"".join(chunks), True)
    assert not wire.closed


@pytest.mark.parametrize("cut", [0, 10, 30, 45, 60])
async def test_a_body_of_known_length(cut: int) -> None:
    """Content-Length ends the body, and the connection stays."""
    answer, wire = await receive(b"HTTP/1.1 400 Bad\r\nContent-Length: 5\r\n\r\nhello", [cut])
    assert (answer.status, answer.body, answer.ended) == (400, b"hello", True)
    assert not wire.closed


async def test_an_empty_body() -> None:
    """Length 0 is an end."""
    answer, _ = await receive(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", [])
    assert answer.ended


async def test_an_interim_answer_is_skipped() -> None:
    """100 Continue is not the answer."""
    whole = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
    answer, _ = await receive(whole, [])
    assert (answer.status, answer.body) == (200, b"x")


@pytest.mark.parametrize(
    "head", [b"HTTP/1.1 200 OK\r\nConnection: close\r\n", b"HTTP/1.0 200 OK\r\n"]
)
async def test_a_server_that_closes_is_not_used_again(head: bytes) -> None:
    """What it says about the connection is heeded."""
    answer, wire = await receive(head + b"Content-Length: 1\r\n\r\nx", [])
    assert answer.ended
    assert wire.closed


@pytest.mark.parametrize("more", [b"y", b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nyy"])
@pytest.mark.parametrize("cuts", [[], [39], [40]])
async def test_bytes_behind_an_answer_close_the_connection(more: bytes, cuts: list[int]) -> None:
    """What nobody asked for must not become the next answer, nor a part of this one."""
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx"
    assert len(whole) == 39
    answer, wire = await receive(whole + more, cuts)
    assert answer.ended
    assert answer.body == b"x"
    assert wire.closed


@pytest.mark.parametrize(
    "whole",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;" + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
    ],
)
async def test_what_is_no_http_ends_the_exchange(whole: bytes) -> None:
    """The receiver learns why, and the connection is closed."""
    answer, wire = await receive(whole, [])
    assert isinstance(answer.lost, BadHttp)
    assert wire.closed
