"""Speech: which ids a simulated model generates for a request.

Greedy requests (temperature 0) get ids that depend on the first prompt id and the position alone:
equal prompts get equal answers, and a cut answer goes on as it would have. Others get ids that
depend on their rid, so that no two share KV by chance.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from agentflow.types import GenerationRequest

_STRIDE = 7919
"""Distance of neighbouring ids; prime, so that a turn does not repeat itself."""
_SCALE = 997


def speak(
    request: GenerationRequest, *, said: int | None, budget: int, vocab_size: int
) -> tuple[NDArray[np.int32], int | None]:
    """Return all ids of the answer, and the stop id that it ends with, if it does.

    The model stops by itself after `said` tokens; None: when it comes upon a stop id.
    """
    stops = request.sampling.stop_token_ids
    length = budget if said is None else min(max(said, 1), budget)
    ids = _stream(request, length, vocab_size)
    if not stops:
        return ids, None
    found = np.isin(ids, stops) if len(stops) > 1 else ids == stops[0]
    if said is None:
        first = int(found.argmax())
        return (ids[: first + 1], int(ids[first])) if found[first] else (ids, None)
    ids[found] = next((i for i in range(vocab_size) if i not in stops), 0)
    if said > budget:
        return ids, None
    ids[-1] = stops[0]
    return ids, stops[0]


def logprobs_of(ids: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return made-up log-probabilities in nats, -1 ≤ value < 0, a function of the id."""
    return -((ids % _SCALE + 1).astype(np.float32) / np.float32(_SCALE))


def _stream(request: GenerationRequest, length: int, vocab_size: int) -> NDArray[np.int32]:
    if request.sampling.temperature > 0:
        base = zlib.crc32(request.rid.encode())
    else:
        base = (int(request.input_ids[0]) + len(request.input_ids)) * _STRIDE
    numbers = np.arange(length, dtype=np.int64) * _STRIDE + base
    return (numbers % vocab_size).astype(np.int32)
