"""What a run came to: counts by class, seconds, and a token ledger that closes.

Pure bookkeeping over ended samples; knows no file and no clock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from agentflow.types import Blame, Cause, TerminationClass
from executors.data.ledger import LedgerCounts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.types import RolloutSample


@dataclass(slots=True, kw_only=True)
class TokenLedger:
    """Generated tokens by what became of them; `received` is counted at the engine's door."""

    received: int = 0
    delivered: int = 0
    """In samples that count."""
    failed: int = 0
    """In samples that are masked, because the infrastructure failed."""
    restarted: int = 0
    """Of earlier attempts that a clean restart threw away."""
    forked: int = 0
    """Of histories that somebody rewrote."""
    unfinished: int = 0
    """Of episodes that had not ended when the run was interrupted."""
    stale: int = 0
    """From weights older than the staleness limit allows."""
    surplus: int = 0
    """Of episodes that were not needed, because enough groups were complete."""
    deadline: int = 0
    """Of stragglers whose group did not wait for them."""
    lost: int = 0
    """With workers that were given up: received for results that came too late, or never."""
    unseen: int | None = None
    """Not in `received`: what the engine counted beyond it, for whomever, while the run lasted.

    None where the engine keeps no count, or the run did not come to its end.
    """

    @property
    def unaccounted(self) -> int:
        """What is left over; anything but 0 is a bug."""
        kept = self.delivered + self.failed + self.restarted + self.forked + self.unfinished
        return self.received - kept - self.stale - self.surplus - self.deadline - self.lost

    @classmethod
    def of_books(cls, figures: Mapping[str, int]) -> TokenLedger:
        """Take what `TokenBooks` gives at the end: who lives or waits then is unfinished."""
        columns = dict(figures)
        return cls(unfinished=columns.pop("live") + columns.pop("buffered"), **columns)


@dataclass(slots=True, kw_only=True)
class Summary:
    """The figures of summary.json."""

    planned: int
    """Episodes that the run was to roll out."""
    episodes: int = 0
    """Episodes that ended."""
    resolved: int = 0
    by_class: dict[TerminationClass, int] = field(
        default_factory=lambda: dict.fromkeys(TerminationClass, 0)
    )
    masked: int = 0
    """Ended by the infrastructure: out of the loss and of group statistics."""
    turns: int = 0
    forks: int = 0
    generation_s: float = 0.0
    environment_s: float = 0.0
    reward_s: float = 0.0
    wall_s: float = 0.0
    samples: LedgerCounts = field(default_factory=LedgerCounts)
    """Where the coordinator's samples were at the end."""
    tokens: TokenLedger = field(default_factory=TokenLedger)
    _received_before: int = field(default=0, init=False, repr=False)
    """Tokens of episodes that ended in an earlier process."""
    _ended: set[str] = field(default_factory=set, init=False, repr=False)

    def add(self, sample: RolloutSample) -> None:
        """Count one ended sample, which has its `termination`."""
        assert sample.termination is not None
        assert sample.ending is not None
        facts = sample.facts
        self._ended.add(sample.episode.key)
        self.episodes += 1
        self.by_class[sample.termination] += 1
        self.resolved += sample.termination is TerminationClass.RESOLVED
        masked = sample.ending.cause.blame is Blame.INFRASTRUCTURE
        self.masked += masked
        self.turns += facts.turns
        self.forks += facts.forks
        self.generation_s += facts.generation_s
        self.environment_s += facts.environment_s
        self.reward_s += facts.reward_s
        self.tokens.restarted += sample.restarted_tokens
        self.tokens.forked += facts.forked_tokens
        if masked:
            self.tokens.failed += facts.generated_tokens
        else:
            self.tokens.delivered += facts.generated_tokens

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Count a sample that ended in an earlier process, as samples.jsonl has it."""
        kind, cause = TerminationClass(row["termination"]), Cause(row["cause"])
        self._ended.add(row["key"])
        self.episodes += 1
        self.by_class[kind] += 1
        self.resolved += kind is TerminationClass.RESOLVED
        masked = cause.blame is Blame.INFRASTRUCTURE
        self.masked += masked
        for name in ("turns", "forks", "generation_s", "environment_s", "reward_s"):
            setattr(self, name, getattr(self, name) + row[name])
        tokens, generated = self.tokens, row["generated_tokens"]
        tokens.restarted += row["restarted_tokens"]
        tokens.forked += row["forked_tokens"]
        tokens.failed += generated * masked
        tokens.delivered += generated * (not masked)
        self._received_before += generated + row["restarted_tokens"] + row["forked_tokens"]

    def close(self, received: Mapping[str, int], *, wall_s: float) -> None:
        """Take the meter's tokens by `EpisodeId.key`, and the run's duration."""
        self.wall_s = wall_s
        self.tokens.received = self._received_before + sum(received.values())
        self.tokens.unfinished = sum(n for key, n in received.items() if key not in self._ended)

    def to_json(self) -> dict[str, Any]:
        """Give the figures as summary.json has them."""
        figures = asdict(self)
        del figures["_ended"], figures["_received_before"]
        figures["by_class"] = {str(kind): count for kind, count in self.by_class.items()}
        figures["samples"] = self.samples.to_json()
        figures["tokens"]["unaccounted"] = self.tokens.unaccounted
        return figures
