"""Request ids: an engine that matches by prefix confuses no two of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentflow.engine.rids import RidFactory, episode_key
from agentflow.types import EpisodeId

REQUESTS = st.tuples(
    st.sampled_from(["a", "a1", "a10", "b"]), st.integers(0, 12), st.integers(0, 99)
)


def rid(factory: RidFactory, request: tuple[str, int, int]) -> str:
    """Make one."""
    uid, attempt, generation = request
    return factory.make(EpisodeId(uid=uid), attempt=attempt, generation=generation)


@given(REQUESTS, REQUESTS)
def test_no_rid_is_the_beginning_of_another(
    one: tuple[str, int, int], two: tuple[str, int, int]
) -> None:
    """All are equally long, and two requests never have the same: "a1" is not "a10"."""
    factory = RidFactory()
    first, second = rid(factory, one), rid(factory, two)
    assert first.startswith(second) == (one == two)


def test_another_process_reuses_none() -> None:
    """A run that goes on after a crash counts from where it likes."""
    request = ("a", 1, 1)
    assert rid(RidFactory(), request) != rid(RidFactory(), request)


def test_a_rid_tells_its_episode() -> None:
    """And what is no rid of ours tells nothing."""
    assert episode_key(rid(RidFactory(), ("a", 0, 0))) == EpisodeId(uid="a").key
    assert episode_key("HEALTH_CHECK-1") is None


@pytest.mark.parametrize(("attempt", "generation"), [(1 << 16, 0), (0, 1 << 24), (-1, 0)])
def test_what_does_not_fit_is_refused(attempt: int, generation: int) -> None:
    """Instead of being cut, which could name another request."""
    with pytest.raises(ValueError, match="does not fit a rid"):
        RidFactory().make(EpisodeId(uid="a"), attempt=attempt, generation=generation)
