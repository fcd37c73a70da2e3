"""What must hold after a run in virtual time, whatever faults it met; each returns violations."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from agentflow.engine.token_record import NO_VERSION
from agentflow.types import Blame, Cause

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from agentflow.sim.setup import Simulation
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.types import EpisodeId, RolloutSample


def check_cleanup(simulation: Simulation) -> list[str]:
    """Check that no environment and no request is left, and that limits were kept."""
    found = [f"environment {name} was left behind" for name in simulation.envs.live]
    most = simulation.config.limits.containers
    if most is not None and simulation.envs.most_live > most:
        found.append(f"{simulation.envs.most_live} environments lived at once, limit {most}")
    for number, engine in enumerate(simulation.engines):
        engine.check()
        if engine.in_flight:
            found.append(f"{engine.in_flight} requests were left at replica {number}")
    return found


def check_samples(
    ended: Sequence[RolloutSample],
    simulation: Simulation,
    *,
    received: Mapping[str, int],
    reissued: Collection[EpisodeId],
    cancelled: bool,
    mixed_weights: bool,
) -> list[str]:
    """Check that every sample ended once, whole, and with every token accounted for.

    Only with `mixed_weights` may an episode that moves to another replica meet older ones there.
    """
    times = Counter(sample.episode for sample in ended)
    found = [f"{episode} ended {n} times" for episode, n in times.items() if n > 1]
    traces = {trace.episode: trace for trace in simulation.traces}
    if not cancelled:
        found += [f"{episode} never ended" for episode in traces if episode not in times]
    for sample in ended:
        problems = [*_problems(sample, traces[sample.episode], simulation)]
        if not mixed_weights and _falls(sample):
            problems.append("the weight versions of its generated tokens fall")
        found += [f"{sample.episode}: {problem}" for problem in problems]
        got, told = received.get(sample.episode.key, 0), _told_tokens(sample)
        if got < told or (got > told and sample.episode not in reissued):
            found.append(f"{sample.episode}: received {got} tokens but accounts for {told}")
    return found


def check_tokens(figures: Mapping[str, int], *, cancelled: bool) -> list[str]:
    """Check that the token ledger closes, each token under one cause."""
    left = 2 * figures["received"] - sum(figures.values())
    found = [f"{left} tokens are unaccounted for: {dict(figures)}"] if left else []
    found += [f"{count} tokens {cause}" for cause, count in figures.items() if count < 0]
    if not cancelled and (still := figures["live"] + figures["buffered"]):
        found.append(f"{still} tokens belong to samples that have not ended, or were not taken")
    return found


def _falls(sample: RolloutSample) -> bool:
    return bool((np.diff(sample.weight_versions[sample.response_mask == 1]) < 0).any())


def _told_tokens(sample: RolloutSample) -> int:
    """Generated tokens that the sample says it got."""
    facts = sample.facts
    return facts.generated_tokens + facts.forked_tokens + sample.restarted_tokens


def _problems(sample: RolloutSample, trace: EpisodeTrace, simulation: Simulation) -> Iterator[str]:
    length = len(sample.responses)
    arrays = (sample.response_mask, sample.rollout_log_prob, sample.weight_versions)
    if {len(array) for array in arrays} != {length} or not length:
        yield f"{length} responses, but {[len(array) for array in arrays]} of what goes with them"
        return
    if sample.ending is None:
        yield "no ending"
        return
    infra = sample.ending.cause.blame is Blame.INFRASTRUCTURE
    if sample.remove_sample != infra and sample.response_mask.any():
        yield f"remove_sample is {sample.remove_sample} for {sample.ending.cause}"
    if sample.rewards and sample.ending.cause is not Cause.SUBMITTED:
        yield f"reward {sample.rewards} for {sample.ending.cause}"
    if sample.response_mask.any():
        yield from _token_problems(sample, trace, simulation)


def _token_problems(
    sample: RolloutSample, trace: EpisodeTrace, simulation: Simulation
) -> Iterator[str]:
    generated = sample.response_mask == 1
    if (sample.weight_versions[~generated] != NO_VERSION).any():
        yield "a rendered token has a weight version"
    versions = sample.weight_versions[generated]
    if (versions < 0).any():
        yield "a generated token has no weight version"
    if sample.rollout_log_prob[~generated].any() or not sample.rollout_log_prob[generated].all():
        yield "log-probabilities do not go with the mask"
    ids, mask = _expected(trace, simulation)
    whole = np.concatenate((sample.prompts, sample.responses))
    if len(whole) > len(ids):
        yield f"{len(whole)} tokens, above the trace's {len(ids)}"
        return
    found_mask = np.concatenate((np.zeros(len(sample.prompts), np.int8), sample.response_mask))
    if (found_mask != mask[: len(whole)]).any():
        yield "generated and rendered tokens do not alternate as in the trace"
    rendered = found_mask == 0
    if (whole[rendered] != ids[: len(whole)][rendered]).any():
        yield "a rendered token is not the one that was rendered"
    submitted = sample.ending is not None and sample.ending.cause is Cause.SUBMITTED
    if submitted and len(whole) != len(ids):
        yield f"submitted after {len(whole)} of {len(ids)} tokens"


def _expected(
    trace: EpisodeTrace, simulation: Simulation
) -> tuple[NDArray[np.int32], NDArray[np.int8]]:
    """Return the ids (0 where generated) and the mask of the whole episode."""
    renderer = simulation.renderer
    parts: list[Sequence[int]] = [
        renderer.opening([_message(f"{trace.episode.uid} {trace.prompt}")])
    ]
    for number, turn in enumerate(trace.turns):
        parts.append([0] * turn.output)
        if number < len(trace.turns) - 1:
            content = f"{trace.episode}/{number} {turn.observation}"
            parts.append(renderer.after_turn([_message(content)], ended=True))
    mask = [np.full(len(part), number % 2, np.int8) for number, part in enumerate(parts)]
    return np.array([i for part in parts for i in part], np.int32), np.concatenate(mask)


def _message(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}
