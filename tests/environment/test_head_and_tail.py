"""The kept parts of an output, whatever pieces it comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentflow.swe.environment.supervisor import HeadAndTail


@given(
    chunks=st.lists(st.binary(max_size=40), max_size=12),
    head=st.integers(min_value=0, max_value=50),
    tail=st.integers(min_value=0, max_value=50),
)
def test_head_and_tail(chunks: list[bytes], head: int, tail: int) -> None:
    """All of it when it fits, else exactly the first and last bytes; the count adds up."""
    kept = HeadAndTail(head_bytes=head, tail_bytes=tail)
    for chunk in chunks:
        kept.add(chunk)
    whole = b"".join(chunks)
    output, dropped = kept.result()
    if len(whole) <= head + tail:
        assert (output, dropped) == (whole, 0)
    else:
        assert output == whole[:head] + whole[len(whole) - tail :]
        assert dropped == len(whole) - head - tail
