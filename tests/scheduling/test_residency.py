"""Residency: who may hold KV memory, by hand and under random growth."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from priority.residency import Footprint, Residency


def test_a_prompt_that_a_group_shares_counts_once() -> None:
    """And goes with the group's last member."""
    residency = Residency[str](1000)
    residency.enter("a", Footprint("g", 100, 10))
    residency.enter("b", Footprint("g", 100, 20))
    assert residency.used == 130
    residency.leave("a")
    assert residency.used == 120
    residency.leave("b")
    residency.leave("b")
    assert (residency.used, len(residency)) == (0, 0)


def test_a_new_group_is_expected_to_have_a_prompt_like_the_last_one() -> None:
    """Before its first generation has told how long it is."""
    residency = Residency[str](1000, share=1.0)
    residency.enter("a", Footprint("g", 600, 0))
    assert not residency.fits(Footprint("h"))
    assert residency.fits(Footprint("g"))


def test_whoever_comes_first_may_enter_however_large() -> None:
    """It could run nowhere else; and it is never too much alone."""
    residency = Residency[str](1000)
    assert residency.fits(Footprint("g", 100, 5000))
    residency.enter("a", Footprint("g", 100, 5000))
    assert not residency.exceeds("a")


def test_only_the_newest_exceed_and_only_as_many_as_it_takes() -> None:
    """The oldest stays whatever it holds."""
    residency = Residency[str](1000, share=1.0)
    for name, own in (("a", 500), ("b", 300), ("c", 200), ("d", 100)):
        residency.enter(name, Footprint(name, 0, own))
    assert [name for name in "abcd" if residency.exceeds(name)] == ["d"]
    residency.grow("a", Footprint("a", 0, 750))
    assert [name for name in "abcd" if residency.exceeds(name)] == ["b", "c", "d"]


def test_room_is_kept_for_the_growth_of_those_inside() -> None:
    """By as much as turns have brought until now."""
    residency = Residency[str](1000, share=1.0)
    residency.enter("a", Footprint("g", 100, 100))
    assert residency.fits(Footprint("g", 100, 100))
    residency.grow("a", Footprint("g", 100, 400))  # 300 a turn, two turns, two episodes
    assert not residency.fits(Footprint("g", 100, 100))


@pytest.mark.parametrize(("kv_tokens", "share"), [(0, 0.5), (100, 0.0), (100, 1.5)])
def test_impossible_sizes_are_refused(kv_tokens: int, share: float) -> None:
    """With the value."""
    with pytest.raises(ValueError, match="must be above 0"):
        Residency(kv_tokens, share=share)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 400)), max_size=60))
def test_parking_who_exceeds_always_ends_within_memory(steps: list[tuple[int, int]]) -> None:
    """Or with a single episode inside."""
    residency = Residency[int](1000)
    own: dict[int, int] = {}
    for episode, growth in steps:
        own[episode] = own.get(episode, 0) + growth
        footprint = Footprint(str(episode % 3), 50, own[episode])
        if episode in residency:
            residency.grow(episode, footprint)
        elif residency.fits(footprint):
            residency.enter(episode, footprint)
        for inside in list(residency):
            if residency.exceeds(inside):
                residency.leave(inside)
        residency.check()
        assert len(residency) <= 1 or residency.used <= 850
