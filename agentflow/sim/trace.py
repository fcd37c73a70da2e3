"""What an episode does, in numbers: drawn by a workload or read from a recorded run."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from agentflow.sim.bound import EpisodeWork, TurnWork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.types import EpisodeId


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnTrace:
    """One generation, and what its command leads to."""

    output: int
    """Tokens generated, the one that ends the turn included; at least 1."""
    command_s: float = 0.0
    """Seconds of the command; the last turn may have none, 0."""
    observation: int = 0
    """Tokens rendered behind the turn; those behind the last one are never seen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeTrace:
    """One episode, from start to verdict."""

    episode: EpisodeId
    prompt: int
    """Tokens of the first prompt, the same ids for a whole group."""
    turns: Sequence[TurnTrace]
    start_s: float = 0.0
    """Seconds until an environment is up, when nothing else starts."""
    verify_s: float = 0.0
    """Seconds of the verdict in an environment that is up."""
    resolved: bool = False

    @property
    def tokens(self) -> int:
        """Length of the context at the end."""
        return self.turn_ends()[-1]

    def turn_ends(self) -> list[int]:
        """Context length after each turn's output."""
        before = [self.prompt, *(turn.observation for turn in self.turns[:-1])]
        grown = [len_in + turn.output for len_in, turn in zip(before, self.turns, strict=True)]
        return list(accumulate(grown))

    def work(self) -> EpisodeWork:
        """What the lower bound needs to know."""
        first = TurnWork(
            new=self.prompt,
            prefix=0,
            decoded=self.turns[0].output - 1,
            env_s=self.turns[0].command_s,
        )
        ends = self.turn_ends()
        later = [
            # The last generated token has no KV yet: it is prefilled with the observation.
            TurnWork(
                new=last.observation + 1,
                prefix=end - 1,
                decoded=turn.output - 1,
                env_s=turn.command_s,
            )
            for last, end, turn in zip(self.turns, ends, self.turns[1:], strict=False)
        ]
        return EpisodeWork(
            turns=[first, *later],
            start_s=self.start_s,
            verify_s=self.start_s + self.verify_s,
            group=self.episode.uid,
            shared=self.prompt,
        )
