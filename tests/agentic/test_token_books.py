"""Tokens by cause, also of names that are given again and of workers that come too late."""

from __future__ import annotations

from collections import Counter

from agentflow.types import Cause, Ending, EpisodeFacts, EpisodeId, RolloutSample
from executors.data.token_books import TokenBooks

KEY = EpisodeId(uid="a").key


def sample(generated: int = 0, cause: Cause = Cause.SUBMITTED) -> RolloutSample:
    """Make a sample that ended with so many generated tokens."""
    return RolloutSample(
        episode=EpisodeId(uid="a"),
        task={},
        ending=Ending(cause=cause, phase="generation"),
        facts=EpisodeFacts(generated_tokens=generated),
    )


def columns(books: TokenBooks) -> dict[str, int]:
    """Give what is not 0."""
    return {name: tokens for name, tokens in books.figures().items() if tokens}


def test_a_lost_workers_tokens_stay_lost_when_its_name_is_given_again() -> None:
    """What comes after delivery counts as lost, and never as the next sample's."""
    received = Counter({KEY: 30})
    books = TokenBooks(received)
    books.lost(sample())
    assert columns(books) == {"received": 30, "live": 30}
    books.ended(sample(20))
    assert columns(books) == {"received": 30, "buffered": 20, "lost": 10}
    books.delivered((sample(20),))
    received[KEY] += 5
    assert columns(books) == {"received": 35, "delivered": 20, "lost": 15}
    books.issued([sample()])
    received[KEY] += 7
    assert columns(books) == {"received": 42, "delivered": 20, "lost": 15, "live": 7}
    books.ended(sample(7, Cause.ENGINE_DIED))
    books.delivered((sample(7),))
    assert columns(books) == {"received": 42, "delivered": 20, "lost": 15, "failed": 7}


def test_tokens_that_no_sample_tells_of_are_no_column_of_an_episode_that_lost_no_worker() -> None:
    """Then the ledger does not close, which is how a bug shows."""
    books = TokenBooks(Counter({KEY: 30}))
    books.ended(sample(20))
    assert columns(books) == {"received": 30, "buffered": 20}
    books.delivered((sample(20),))
    assert columns(books) == {"received": 30, "delivered": 20}


def test_a_dropped_episodes_tokens_go_where_it_went_lost_worker_or_not() -> None:
    """One cause a token: that of the drop."""
    books = TokenBooks(Counter({KEY: 30}))
    books.lost(sample())
    books.dropped(sample(), Ending(cause=Cause.SURPLUS, phase="group"))
    assert columns(books) == {"received": 30, "surplus": 30}


def test_what_an_earlier_process_received_is_received() -> None:
    """Its meter is gone; the sample says how much it was."""
    books = TokenBooks(Counter())
    books.restored(sample(20))
    assert columns(books) == {"received": 20, "buffered": 20}
