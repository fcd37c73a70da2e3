"""What a server says about its load, and its metrics read without counting anything twice."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.errors import EngineAdminFailed

if TYPE_CHECKING:
    from collections.abc import Mapping

_LINE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>[^}]*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLoad:
    """One server at one moment, summed over its data-parallel ranks."""

    url: str
    running: int
    """Requests being decoded."""
    waiting: int
    """Requests in the queue."""
    used_tokens: int
    """KV slots that hold live contexts."""
    kv_tokens: int
    """KV capacity in tokens."""
    tokens_per_s: float
    """Decoding throughput; refreshed every few decode steps."""
    cache_hit_rate: float
    """0..1, mean over ranks."""

    @property
    def token_usage(self) -> float:
        """Share of the KV capacity in use, 0..1."""
        return self.used_tokens / self.kv_tokens if self.kv_tokens else 0.0


class _Rank(msgspec.Struct):
    """What is read of one data-parallel rank."""

    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    gen_throughput: float
    cache_hit_rate: float


class _Loads(msgspec.Struct):
    loads: list[_Rank]


def load_of(url: str, answer: Any) -> ReplicaLoad:
    """Read the answer of `/v1/loads`. Raises EngineAdminFailed when it is something else."""
    try:
        ranks = msgspec.convert(answer, _Loads).loads
    except msgspec.ValidationError as error:
        raise EngineAdminFailed(
            f"GET {url}/v1/loads: {str(answer)[:200]!r} is not SGLang's answer ({error})"
        ) from error
    return ReplicaLoad(
        url=url,
        running=sum(rank.num_running_reqs for rank in ranks),
        waiting=sum(rank.num_waiting_reqs for rank in ranks),
        used_tokens=sum(rank.num_used_tokens for rank in ranks),
        kv_tokens=sum(rank.max_total_num_tokens for rank in ranks),
        tokens_per_s=sum(rank.gen_throughput for rank in ranks),
        cache_hit_rate=sum(rank.cache_hit_rate for rank in ranks) / max(len(ranks), 1),
    )


def metrics_of(text: str) -> dict[str, float]:
    """Read Prometheus text: `sglang:*` gauges and counters, summed over ranks.

    With priority scheduling gauges come as a total (`priority=""`) beside their parts by priority,
    and then only the total counts; counters come in parts alone, which add up. Parts of one
    tensor-parallel group repeat each other: rank 0 counts.
    Raises EngineAdminFailed at a value that is no number.
    """
    totals, parts = dict[str, float](), dict[str, float]()
    for line in text.splitlines():
        found = _LINE.match(line)
        if found is None or not found["name"].startswith("sglang:"):
            continue
        labels = dict(_LABEL.findall(found["labels"] or ""))
        if _counts(labels):
            sums = parts if labels.get("priority") else totals
            name, value = found["name"], _number(line, found["value"])
            sums[name] = sums.get(name, 0.0) + value
    return parts | totals


def _counts(labels: Mapping[str, str]) -> bool:
    ranks = ("tp_rank", "pp_rank", "moe_ep_rank")
    return "le" not in labels and all(labels.get(rank, "0") == "0" for rank in ranks)


def _number(line: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise EngineAdminFailed(f"GET /metrics: {line[:200]!r} has no number") from None
