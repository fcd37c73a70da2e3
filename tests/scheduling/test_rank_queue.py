"""RankQueue, by a list that is sorted anew for every question."""

from __future__ import annotations

from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given

from priority.rank_queue import RankQueue

AGE_S = 3.0


@dataclass(eq=False)
class Waiting:
    """Somebody in a line."""

    high: bool
    rank: float
    queued_at: float
    ticket: int = 0
    entry: int = 0
    """When it entered, as this test counts; below 0 for those that went first among equals."""


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["add", "first", "leave", "requeue"]),
            st.booleans(),
            st.integers(0, 2),
            st.integers(0, 9),
        ),
        max_size=40,
    )
)
def test_who_goes_first_is_as_in_a_sorted_list(
    steps: list[tuple[str, bool, int, int]],
) -> None:
    """The oldest that has aged, else by class, rank and entry, whatever left before."""
    queue = RankQueue[Waiting](AGE_S)
    line: list[Waiting] = []
    for now, (step, high, rank, which) in enumerate(steps):
        if step in {"add", "first"} or not line:
            entry = -now - 1 if step == "first" else now + 1
            line.append(Waiting(high, rank, now, entry=entry))
            queue.add(line[-1], first=step == "first")
        elif step == "leave":
            queue.discard(line.pop(which % len(line)))
        else:
            item = line[which % len(line)]
            item.high, item.rank = high, rank
            item.entry = now + 1 if item.entry > 0 else -now - 1
            queue.requeue(item)
        by_rank = sorted(line, key=lambda item: (not item.high, item.rank, item.entry))
        aged = [item for item in line if item.queued_at <= now - AGE_S]
        oldest = min(aged, key=lambda item: item.queued_at, default=None)
        assert list(queue) == by_rank
        assert queue.first() is next(iter(by_rank), None)
        assert queue.first(now) is (oldest or next(iter(by_rank), None))


def test_nobody_ages_where_no_age_is_given() -> None:
    """However long they have waited."""
    queue = RankQueue[Waiting]()
    old, high = Waiting(high=False, rank=0, queued_at=0), Waiting(high=True, rank=0, queued_at=9)
    queue.add(old)
    queue.add(high)
    assert queue.first(1e9) is high
