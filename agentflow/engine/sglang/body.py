"""The bytes of a /generate request, checked first: one id outside the vocabulary kills a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import orjson

from agentflow.errors import ContextFull, EngineRejected

if TYPE_CHECKING:
    from agentflow.types import GenerationRequest, ModelInfo, SamplingParams

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def check(request: GenerationRequest, info: ModelInfo) -> None:
    """Refuse what the server would refuse or not survive. Raises EngineRejected, ContextFull."""
    _check_ids(request, info.vocab_size)
    sampling = request.sampling
    if sampling.max_new_tokens < 1:
        raise EngineRejected(f"max_new_tokens: {sampling.max_new_tokens} must be at least 1")
    bad = [i for i in sampling.stop_token_ids if not 0 <= i < info.vocab_size]
    if bad:
        raise EngineRejected(f"stop_token_ids: {bad[0]} is not in 0..{info.vocab_size - 1}")
    room = info.context_length - len(request.input_ids)
    if room < 1:
        raise ContextFull(
            f"{len(request.input_ids)} input tokens leave no room in a context of "
            f"{info.context_length}"
        )
    if sampling.max_new_tokens > room:
        raise EngineRejected(
            f"max_new_tokens: {sampling.max_new_tokens} behind {len(request.input_ids)} input "
            f"tokens must be at most {room} in a context of {info.context_length}"
        )


def _check_ids(request: GenerationRequest, vocab_size: int) -> None:
    ids = np.asarray(request.input_ids)
    if ids.ndim != 1 or not len(ids):
        raise EngineRejected(f"input_ids: shape {ids.shape} must be (n,) with n at least 1")
    if not np.issubdtype(ids.dtype, np.integer):
        raise EngineRejected(f"input_ids: dtype {ids.dtype} must be an integer type")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= vocab_size:
        worst = low if low < 0 else high
        where = int(np.flatnonzero(ids == worst)[0])
        raise EngineRejected(f"input_ids[{where}]: {worst} is not in 0..{vocab_size - 1}")


def encode(request: GenerationRequest, *, stream_interval: int | None) -> bytes:
    """Return the JSON body, ids straight from their buffer."""
    body: dict[str, Any] = {
        "rid": request.rid,
        "input_ids": np.ascontiguousarray(request.input_ids),
        "sampling_params": _sampling(request.sampling, stream_interval),
        "return_logprob": True,
        "logprob_start_len": -1,
        "stream": True,
    }
    if request.priority is not None:
        body["priority"] = request.priority
    return orjson.dumps(body, option=_OPTIONS)


def _sampling(sampling: SamplingParams, stream_interval: int | None) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
    }
    if sampling.stop:
        params["stop"] = sampling.stop
    if sampling.stop_token_ids:
        params["stop_token_ids"] = sampling.stop_token_ids
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    if stream_interval is not None:
        params["stream_interval"] = stream_interval
    return params
