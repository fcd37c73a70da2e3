"""The lower bound of a step's makespan, and where one engine's time went.

Pure arithmetic over what a workload needs; a schedule decides nothing here. A turn's first token
comes with its prefill, so `decoded` counts the others. For every schedule of the engine model:

    W   work        [a·max(⌈D/G⌉, ⌈H/Kmax⌉) + b·D + c·H + P] / R
    CP  chain       the longest episode, each of its actions alone
    SL  containers  the sum of all chains over the number of containers
    HT  head, tail  the first start, then all work, then the last verdict
    LB = max(W, CP, SL, HT) ≤ makespan,   rho = makespan / LB ≥ 1,   regime kappa = W / CP

D decoded tokens, H context tokens read by them, P prefill work; R engines of G slots and Kmax KV
tokens. A prompt that a group shares counts once in P, and then ⌈H/Kmax⌉ drops out, as shared KV is
read by several. In a chain everybody finds the shared prompt cached, except that in every group
somebody computes it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.sim.engine_spec import EngineTimings
    from agentflow.sim.sequence import EngineUse


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnWork:
    """What one turn needs when everything that was computed before is still cached."""

    new: int
    """Prompt tokens without KV, n."""
    prefix: int
    """Prompt tokens with KV, h."""
    decoded: int
    """Tokens made by decode steps: the turn's output less one."""
    env_s: float = 0.0
    """Seconds of the command after it."""

    @property
    def reads(self) -> int:
        """Context tokens that the decode steps read: n + h + 1 in the first, and one more each."""
        return self.decoded * (self.new + self.prefix) + self.decoded * (self.decoded + 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeWork:
    """What one episode needs."""

    turns: Sequence[TurnWork]
    start_s: float = 0.0
    """Seconds until its environment is up."""
    verify_s: float = 0.0
    """Seconds of its verdict, its environment's start included."""
    group: str | None = None
    """Who shares the prompt."""
    shared: int = 0
    """Leading prompt tokens that its group shares; they are part of the first turn's `new`."""

    def first_turn_cached(self) -> TurnWork:
        """Return the first turn as it is when the shared prompt is cached."""
        first = self.turns[0]
        hit = min(self.shared, first.new - 1)
        return TurnWork(
            new=first.new - hit,
            prefix=first.prefix + hit,
            decoded=first.decoded,
            env_s=first.env_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What there is to work with."""

    timings: EngineTimings
    slots: int
    """Generations that one engine runs at once, G."""
    kv_tokens: int | None = None
    """KV tokens of one engine, Kmax; None is unlimited."""
    engines: int = 1
    containers: int | None = None
    """Environments that may live at once, C; None is unlimited."""
    start_holds_container: bool = True
    verify_holds_container: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LowerBound:
    """The bound's parts, in seconds."""

    work_s: float
    """W."""
    chain_s: float
    """CP."""
    container_s: float
    """SL."""
    head_tail_s: float
    """HT."""
    fewest_steps: int
    """Decode steps that W counts, over all engines."""

    @property
    def seconds(self) -> float:
        """LB: no schedule is faster."""
        return max(self.work_s, self.chain_s, self.container_s, self.head_tail_s)

    @property
    def regime(self) -> float:
        """kappa: above 1 the engines are the limit, below it the longest episode."""
        return self.work_s / self.chain_s if self.chain_s else math.inf

    def rho(self, makespan_s: float) -> float:
        """How many times as long as the bound a schedule took."""
        return makespan_s / self.seconds


def lower_bound(episodes: Sequence[EpisodeWork], resources: Resources) -> LowerBound:
    """Compute the bound. Raises ValueError when there is nothing to do."""
    if not episodes or not all(episode.turns for episode in episodes):
        raise ValueError("there must be at least one episode, and every episode needs a turn")
    fewest = _fewest_steps(episodes, resources)
    work = _work_s(episodes, resources.timings, fewest) / resources.engines
    return LowerBound(
        work_s=work,
        chain_s=_longest_chain_s(episodes, resources.timings),
        container_s=_container_s(episodes, resources),
        head_tail_s=min(e.start_s for e in episodes) + work + min(e.verify_s for e in episodes),
        fewest_steps=fewest,
    )


# --- parts ------------------------------------------------------------------------------------


def _fewest_steps(episodes: Sequence[EpisodeWork], resources: Resources) -> int:
    turns = [turn for episode in episodes for turn in episode.turns]
    by_slots = math.ceil(sum(turn.decoded for turn in turns) / resources.slots)
    if resources.kv_tokens is None or any(episode.shared for episode in episodes):
        return by_slots
    return max(by_slots, math.ceil(sum(turn.reads for turn in turns) / resources.kv_tokens))


def _work_s(episodes: Sequence[EpisodeWork], timings: EngineTimings, steps: int) -> float:
    seconds, paid = timings.a * steps, set[str]()
    for episode in episodes:
        sharing = episode.shared and episode.group is not None and episode.group in paid
        first = episode.first_turn_cached() if sharing else episode.turns[0]
        if episode.group is not None:
            paid.add(episode.group)
        for turn in (first, *episode.turns[1:]):
            seconds += timings.b * turn.decoded + timings.c * turn.reads
            seconds += timings.part_s(turn.new, turn.prefix)
    return seconds


def turn_s(turn: TurnWork, timings: EngineTimings) -> float:
    """Seconds of a turn that has an engine to itself, and of its command."""
    prefill = timings.pa + timings.part_s(turn.new, turn.prefix)
    return prefill + (timings.a + timings.b) * turn.decoded + timings.c * turn.reads + turn.env_s


def _turns_s(episode: EpisodeWork, timings: EngineTimings, *, cached: bool) -> float:
    first = episode.first_turn_cached() if cached else episode.turns[0]
    return sum(turn_s(turn, timings) for turn in (first, *episode.turns[1:]))


def _longest_chain_s(episodes: Sequence[EpisodeWork], timings: EngineTimings) -> float:
    longest = 0.0
    payers = defaultdict[str, list[float]](list)
    for episode in episodes:
        around = episode.start_s + episode.verify_s
        shares = bool(episode.shared and episode.group is not None)
        longest = max(longest, around + _turns_s(episode, timings, cached=shares))
        if shares and episode.group is not None:
            payers[episode.group].append(around + _turns_s(episode, timings, cached=False))
    return max([longest, *(min(chains) for chains in payers.values())])


def _container_s(episodes: Sequence[EpisodeWork], resources: Resources) -> float:
    if resources.containers is None:
        return 0.0
    held = 0.0
    for episode in episodes:
        shares = bool(episode.shared and episode.group is not None)
        held += _turns_s(episode, resources.timings, cached=shares)
        held += episode.start_s * resources.start_holds_container
        held += episode.verify_s * resources.verify_holds_container
    return held / resources.containers


# --- where the time went ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """From W to the makespan, for one engine, in seconds; the parts add up exactly."""

    work_s: float
    """W."""
    idle_s: float
    """Nothing to compute, or paused."""
    update_s: float
    """Weight updates."""
    step_overhead_s: float
    """Decode steps beyond the fewest, each `a`."""
    prefill_batches_s: float
    """Prefill batches, each `pa`."""
    recompute_s: float
    """Tokens computed that the bound does not count: cache misses, retractions, aborts."""

    @property
    def makespan_s(self) -> float:
        """The sum of all parts."""
        return (
            self.work_s
            + self.idle_s
            + self.update_s
            + self.step_overhead_s
            + self.prefill_batches_s
            + self.recompute_s
        )


def waterfall(
    *, makespan_s: float, use: EngineUse, bound: LowerBound, timings: EngineTimings
) -> Waterfall:
    """Explain `makespan_s` of a run on one engine that did `use`."""
    fewest_s = timings.a * bound.fewest_steps
    computed_s = (
        timings.b * use.decoded_tokens
        + timings.c * use.decode_reads
        + timings.pb * use.prefill_tokens
        + timings.pg * use.prefill_reads
    )
    return Waterfall(
        work_s=bound.work_s,
        idle_s=makespan_s - use.busy_s - use.update_s,
        update_s=use.update_s,
        step_overhead_s=timings.a * use.steps - fewest_s,
        prefill_batches_s=timings.pa * use.prefill_batches,
        recompute_s=computed_s - (bound.work_s - fewest_s),
    )
