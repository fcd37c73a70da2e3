"""take_in: check a request as SGLang's server would, and decide what the answer will be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentflow.errors import ContextFull, EngineRejected
from agentflow.sim.sequence import Sequence
from agentflow.sim.speech import speak

if TYPE_CHECKING:
    from agentflow.sim.engine_spec import EngineSpec
    from agentflow.types import GenerationRequest

_KV_MARGIN = 2
"""SGLang keeps this much KV memory from a request's prompt and budget."""


def take_in(request: GenerationRequest, spec: EngineSpec, *, said: int | None) -> Sequence:
    """Return the request as the engine keeps it; `said` as in `speak`.

    Raises EngineRejected, or ContextFull when not even one token more fits the context.
    """
    _check_ids(request, spec)
    budget = _budget(len(request.input_ids), request.sampling.max_new_tokens, spec)
    output, matched = speak(request, said=said, budget=budget, vocab_size=spec.vocab_size)
    return Sequence(request=request, budget=budget, output=output, matched=matched)


def _check_ids(request: GenerationRequest, spec: EngineSpec) -> None:
    if not len(request.input_ids):
        raise EngineRejected("input_ids is empty; at least one token is needed")
    ids = np.asarray(request.input_ids, np.int32)
    if ids.view(np.uint32).max() >= spec.vocab_size:  # a negative id is a large one there
        wrong = ids[ids.view(np.uint32) >= spec.vocab_size][0]
        raise EngineRejected(f"id {wrong} is outside the vocabulary of {spec.vocab_size}")


def _budget(prompt: int, new: int, spec: EngineSpec) -> int:
    """Most tokens that may be generated: `new`, or what KV memory holds of it."""
    most = spec.context_length
    if prompt >= most:
        raise ContextFull(f"{prompt} tokens fill the context of {most}")
    if prompt + new > most:
        raise EngineRejected(
            f"{prompt} tokens and max_new_tokens {new} are above the context of {most}"
        )
    budget = new if spec.kv_tokens is None else min(new, spec.kv_tokens - _KV_MARGIN - prompt)
    if budget < 1:
        raise EngineRejected(
            f"{prompt} tokens and max_new_tokens {new} do not fit: KV memory has {spec.kv_tokens}"
            " tokens, and one must be generated"
        )
    return budget
