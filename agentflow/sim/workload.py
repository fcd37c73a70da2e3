"""Workload: seeded episodes with published distributions, committed with their parameters."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.types import EpisodeId

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

_DISTRIBUTIONS = ("turns", "output", "observation", "command_s", "start_s", "verify_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Lognormal:
    """exp of a normal variable."""

    mu: float
    sigma: float

    def draw(self, rng: random.Random) -> float:
        """Draw one value."""
        return math.exp(rng.gauss(self.mu, self.sigma))


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """How episodes are drawn."""

    name: str
    prompt_tokens: int
    """First prompt, shared by a group."""
    context_cap: int
    """No episode's context grows beyond this; it submits before."""
    turns: Lognormal
    group_share: float
    """Share of the variance of log turns that a group has in common, 0..1."""
    max_turns: int
    output: Lognormal
    """Tokens a turn."""
    max_output: int
    observation: Lognormal
    """Tokens rendered behind a turn."""
    max_observation: int
    command_s: Lognormal
    max_command_s: float
    start_s: Lognormal
    """Environment start with no other beside it."""
    start_growth: float
    """Share by which a start takes longer for each other start under way."""
    verify_s: Lognormal
    resolved: float
    """Share of episodes that resolve their task."""

    def episodes(
        self, *, groups: int, group_size: int, random_for: Callable[[str], random.Random]
    ) -> list[EpisodeTrace]:
        """Draw `groups` times `group_size` episodes; each depends on its own name only."""
        return [
            self._episode(EpisodeId(uid=f"{self.name}-{number:05d}", replica_index=i), random_for)
            for number in range(groups)
            for i in range(group_size)
        ]

    def _episode(
        self, episode: EpisodeId, random_for: Callable[[str], random.Random]
    ) -> EpisodeTrace:
        common = random_for(f"workload/{episode.uid}").gauss(0, 1)
        rng = random_for(f"workload/{episode}")
        return EpisodeTrace(
            episode=episode,
            prompt=self.prompt_tokens,
            turns=self._turns(rng, self._turn_count(rng, common)),
            start_s=round(self.start_s.draw(rng), 3),
            verify_s=round(self.verify_s.draw(rng), 3),
            resolved=rng.random() < self.resolved,
        )

    def _turn_count(self, rng: random.Random, common: float) -> int:
        own = rng.gauss(0, 1)
        mixed = common * math.sqrt(self.group_share) + own * math.sqrt(1 - self.group_share)
        count = round(math.exp(self.turns.mu + self.turns.sigma * mixed))
        return min(max(count, 1), self.max_turns)

    def _turns(self, rng: random.Random, count: int) -> tuple[TurnTrace, ...]:
        turns = list[TurnTrace]()
        context = self.prompt_tokens
        for _ in range(count):
            turn = TurnTrace(
                output=_tokens(self.output, rng, self.max_output),
                command_s=round(min(self.command_s.draw(rng), self.max_command_s), 3),
                observation=_tokens(self.observation, rng, self.max_observation),
            )
            context += turn.output + turn.observation
            turns.append(turn)
            if context + self.max_output > self.context_cap:
                break
        return (*turns[:-1], TurnTrace(output=turns[-1].output))


def load_workload(name: str) -> Workload:
    """Read one of the shipped workloads. Raises ConfigError, naming those there are."""
    text = resources.files("agentflow.sim").joinpath("data/workloads.json").read_text("utf-8")
    known: Mapping[str, Mapping[str, Any]] = json.loads(text)["workloads"]
    if name not in known:
        raise ConfigError(f"no workload {name!r}; there are: {', '.join(sorted(known))}")
    raw = dict(known[name])
    fits = {key: Lognormal(mu=raw[key][0], sigma=raw[key][1]) for key in _DISTRIBUTIONS}
    return Workload(name=name, **{**raw, **fits})


def _tokens(fit: Lognormal, rng: random.Random, most: int) -> int:
    return min(max(round(fit.draw(rng)), 2), most)
