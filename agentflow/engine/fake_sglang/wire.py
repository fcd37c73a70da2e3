"""The bodies that a real SGLang 0.5.23 was seen to send, filled in for a FakeRequest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentflow.engine.fake_sglang.model import FakeModel
    from agentflow.engine.fake_sglang.scheduler import FakeRequest, FakeScheduler

QUEUE_FULL = "The request queue is full."
PRIORITY_OFF = (
    "Using priority is disabled for this server. Please send a new request without a priority."
)
NO_SESSION = "{call} must run between begin_weight_update() and end_weight_update()"
SESSION_OPEN = "a weight-update session is already open; call end_weight_update() first"
SESSION_CLOSED = "no weight-update session is open; call begin_weight_update() first"
NOT_FLUSHED = (
    "Weights were updated, but the cache was not flushed because requests are still running or "
    "queued. Retract or finish them, then call /flush_cache."
)
FLUSHED = (
    "Cache flushed.\nPlease check backend logs for more details. (When there are running or "
    "waiting requests, the operation will not be performed.)\n"
)


def event(
    request: FakeRequest, *, sent: int, text: str, version: str, incremental: bool
) -> dict[str, Any]:
    """Return one event with the tokens from `sent` on: 0 for a cumulative server.

    An incremental one ends what was aborted in the queue, retracted, in a way of its own: the last
    id comes once more, and the log-probs of all.
    """
    every = range(len(request.output))
    new, told = [*every[sent:]], [*every[sent:]]
    if incremental and _aborted_in_queue(request):
        new, told = [*new, *every[-1:]], [*told, *every]
    meta: dict[str, Any] = {
        "id": request.rid,
        "finish_reason": request.reason,
        "weight_version": version,
        "input_token_logprobs": [],
        "output_token_logprobs": [[request.logprobs[i], request.output[i], None] for i in told],
        "output_token_logprobs_length": len(request.output),
        "completion_tokens": len(request.output),
    }
    if not _aborted_in_queue(request):
        meta |= {
            "prompt_tokens": len(request.prompt),
            "num_retractions": request.retractions,
            "reasoning_tokens": 0,
            "cached_tokens": request.cached_tokens,
            "cached_tokens_details": {"device": request.cached_tokens, "host": 0},
            "dp_rank": None,
        }
    if request.finished:
        meta["weight_versions"] = _versions(request, version)
        meta["e2e_latency"] = 0.1
    return {"text": text, "output_ids": [request.output[i] for i in new], "meta_info": meta}


def _aborted_in_queue(request: FakeRequest) -> bool:
    return request.reason is not None and request.reason.get("message") == "Abort in waiting queue"


def _versions(request: FakeRequest, version: str) -> list[dict[str, Any]]:
    runs = request.versions or [[version, 0, 0]]
    return [{"version": name, "start": start, "end": end} for name, start, end in runs]


def refused_event(rid: str, message: str, *, version: str) -> dict[str, Any]:
    """Return the one event of a stream that was turned away with status 503."""
    return {
        "text": "",
        "output_ids": [],
        "meta_info": {
            "id": rid,
            "finish_reason": {"type": "abort", "status_code": 503, "message": message},
            "weight_version": version,
            "e2e_latency": 0.004,
            "weight_versions": [{"version": version, "start": 0, "end": 0}],
            "completion_tokens": 0,
        },
    }


def error_event(message: str) -> dict[str, Any]:
    """Return the event by which a stream is told that its request is wrong."""
    return {
        "error": {
            "message": message,
            "type": "invalid_request_error",
            "code": 400,
            "retryable": False,
        }
    }


def load(scheduler: FakeScheduler, *, slots: int, kv_tokens: int) -> dict[str, Any]:
    """Return the answer of `/v1/loads`."""
    used = sum(len(r.prompt) + len(r.output) for r in scheduler.running)
    rank = {
        "dp_rank": 0,
        "num_running_reqs": len(scheduler.running),
        "num_waiting_reqs": len(scheduler.waiting),
        "num_used_tokens": used,
        "num_total_tokens": used,
        "max_total_num_tokens": kv_tokens,
        "max_running_requests": slots,
        "token_usage": round(used / kv_tokens, 4),
        "gen_throughput": 0.0,
        "cache_hit_rate": 0.0,
        "utilization": 0.0,
        "queues": {"waiting": len(scheduler.waiting), "paused": 0, "retracted": 0},
    }
    return {"version": "0.5.23", "accelerator": None, "num_accelerators": 1, "loads": [rank]}


def metrics(scheduler: FakeScheduler) -> str:
    """Return Prometheus text as with priority scheduling on: gauges in total and by priority."""
    running, waiting = len(scheduler.running), len(scheduler.waiting)
    labels = 'engine_type="unified",model_name="fake",moe_ep_rank="0",pp_rank="0"'
    lines = ["# TYPE sglang:num_running_reqs gauge"]
    for name, value in (("num_running_reqs", running), ("num_queue_reqs", waiting)):
        lines += [
            f'sglang:{name}{{{labels},priority="{priority}",tp_rank="0"}} {float(value)}'
            for priority in ("", "0")
        ]
    lines.append(
        'sglang:generation_tokens_total{engine_type="unified",is_streaming="true",'
        f'model_name="fake",priority="0"}} {float(scheduler.decoded)}'
    )
    return "\n".join(lines) + "\n"


def too_long(model: FakeModel, tokens: int) -> str:
    """Return what is said of a prompt that does not fit."""
    return (
        f"The input ({tokens} tokens) is longer than the model's context length "
        f"({model.context_length} tokens)."
    )
