"""TokenRecord keeps its arrays aligned, small and growing in constant time."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentflow.engine.token_record import NO_VERSION, TokenRecord

chunks = st.lists(
    st.tuples(st.lists(st.integers(0, 1000), max_size=9), st.integers(NO_VERSION, 2)), max_size=12
)


def filled(parts: list[tuple[list[int], int]]) -> TokenRecord:
    """Make a record of chunks; the log-prob of id i is -i / 8."""
    record = TokenRecord()
    for ids, version in parts:
        if version == NO_VERSION:
            record.extend_rendered(ids)
        else:
            record.append(ids, [-i / 8 for i in ids], version)
    return record


@settings(max_examples=40)
@given(chunks)
def test_arrays_say_what_was_appended(parts: list[tuple[list[int], int]]) -> None:
    """Prompt, response, mask, log-prob and version agree with a plain list of tokens."""
    record = filled(parts)
    tokens = [(i, version) for ids, version in parts for i in ids]
    generated = [n for n, (_, version) in enumerate(tokens) if version != NO_VERSION]
    start = generated[0] if generated else len(tokens)
    assert record.ids.tolist() == [i for i, _ in tokens]
    assert record.prompts.tolist() == [i for i, _ in tokens[:start]]
    assert record.responses.tolist() == [i for i, _ in tokens[start:]]
    assert record.weight_versions.tolist() == [version for _, version in tokens[start:]]
    assert record.response_mask.tolist() == [int(v != NO_VERSION) for _, v in tokens[start:]]
    expected = [-i / 8 if version != NO_VERSION else 0.0 for i, version in tokens[start:]]
    assert record.rollout_log_prob.tolist() == expected
    assert record.generated == len(generated)


@settings(max_examples=40)
@given(chunks, st.data())
def test_truncating_is_never_having_appended(
    parts: list[tuple[list[int], int]], data: st.DataObject
) -> None:
    """A truncated record equals one that only got the tokens before the cut."""
    record = filled(parts)
    length = data.draw(st.integers(0, len(record)))
    tokens = [(i, version) for ids, version in parts for i in ids][:length]
    record.truncate(length)
    again = filled([([i], version) for i, version in tokens])
    for name in ("prompts", "responses", "weight_versions", "rollout_log_prob"):
        np.testing.assert_array_equal(getattr(record, name), getattr(again, name))


@settings(max_examples=40)
@given(chunks)
def test_pickles_without_spare_capacity(parts: list[tuple[list[int], int]]) -> None:
    """The copy is equal and grows on; what memory happened to hold is not in it."""
    record = filled(parts)
    copy = pickle.loads(pickle.dumps(record))
    assert copy._ids.nbytes + copy._logprobs.nbytes == 8 * len(record)
    copy.append([1], [-1.0], 0)
    assert copy.ids.tolist() == [*record.ids.tolist(), 1]


@pytest.mark.parametrize("step", [1, 7, 16, 300])
def test_twelve_bytes_a_token_and_few_copies(step: int) -> None:
    """With spare capacity at most twelve bytes a token; growing copies under three tokens each."""
    record = TokenRecord()
    copied = 0
    capacity = len(record._ids)
    while len(record) < 40_000:
        record.append([1] * step, [0.0] * step, 0)
        if len(record._ids) != capacity:
            copied += len(record) - step
            capacity = len(record._ids)
        if len(record) >= 256:
            assert record._ids.nbytes + record._logprobs.nbytes <= 12 * len(record)
    assert copied < 3 * len(record)


def test_views_cannot_be_written_and_outlive_growth() -> None:
    """A request's ids stay what they were when the record grows."""
    record = TokenRecord()
    record.extend_rendered([1, 2, 3])
    view = record.ids
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 9
    record.append([4] * 1000, [0.0] * 1000, 0)
    assert view.tolist() == [1, 2, 3]


def test_bad_appends_are_refused_and_change_nothing() -> None:
    """Uneven lists, a negative version and a length out of range raise."""
    record = TokenRecord()
    record.extend_rendered([1, 2])
    with pytest.raises(ValueError, match="2 ids but 1 logprobs"):
        record.append([1, 2], [0.0], 0)
    with pytest.raises(ValueError, match="version -1"):
        record.append([1], [0.0], -1)
    with pytest.raises(ValueError, match=r"length 3 is outside 0\.\.2"):
        record.truncate(3)
    assert record.ids.tolist() == [1, 2]
    assert record.prompt_len == 2


def test_a_refused_append_changes_nothing() -> None:
    """An id that does not fit is an error, and the record is as it was."""
    record = TokenRecord()
    record.extend_rendered([1, 2])
    with pytest.raises(OverflowError):
        record.append([2**31], [-1.0], 0)
    record.extend_rendered([3])
    assert (len(record), record.prompt_len) == (3, 3)


def test_a_view_survives_a_fork() -> None:
    """What was handed out before a truncation keeps its values."""
    record = TokenRecord()
    record.extend_rendered([1, 2, 3])
    before = record.ids
    record.truncate(0)
    record.extend_rendered([7, 8, 9])
    assert before.tolist() == [1, 2, 3]
