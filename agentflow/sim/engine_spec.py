"""EngineSpec: how fast a simulated engine is, what it holds, and the timings that ship as data."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

_MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimings:
    """Step times, linear in the batch: seconds here, milliseconds in the data.

    A decode step of B sequences that read K context tokens takes `a + b·B + c·K`. A prefill batch
    takes `pa` plus, for each part of n new tokens over a prefix of h, `pb·n + pg·n·(h + n/2)`.
    """

    a: float
    b: float
    c: float
    pa: float
    pb: float
    pg: float

    def decode_s(self, batch: int, context: int) -> float:
        """Seconds of one decode step."""
        return self.a + self.b * batch + self.c * context

    def part_s(self, new: int, prefix: int) -> float:
        """Seconds that one sequence's part adds to a prefill batch."""
        return self.pb * new + self.pg * attention_reads(new, prefix)


def attention_reads(new: int, prefix: int) -> float:
    """n·(h + n/2): token pairs that a prefill of `new` tokens over `prefix` attends to."""
    return new * (prefix + new / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """One engine replica. Defaults are SGLang's, apart from the slots."""

    timings: EngineTimings
    slots: int = 64
    """Requests that may run at once (`--max-running-requests`)."""
    kv_tokens: int | None = None
    """KV capacity in tokens; None is unlimited."""
    context_length: int = 65536
    """Longest prompt + output, in tokens."""
    vocab_size: int = 151_936
    prefill_chunk: int = 8192
    """New tokens in one prefill batch (`--chunked-prefill-size`)."""
    reserve_clip: int = 4096
    """Admission reserves at most this many tokens of a request's budget."""
    reserve_ratio: float = 0.7
    """Share of the running requests' budgets that admission reserves at first…"""
    reserve_floor: float = 0.098
    """… and after `reserve_decay_steps` decode steps."""
    reserve_decay_steps: int = 600
    retract_headroom: int = 20
    """Decode steps that the ratio allows for after a retraction."""
    priorities: bool = False
    """Order the queue by priority (`--enable-priority-scheduling`)."""
    preemption: bool = False
    """Let a higher priority throw out a running request; only with `priorities`."""
    preemption_threshold: int = 10
    """A difference of priorities must be above this to preempt."""
    prefix_cache: bool = True
    page_size: int = 1
    """Tokens of a KV page (`--page-size`): prefixes are cached and matched in whole pages. What a
    request's last page leaves empty is not counted as used."""
    update_s: float = 0.0
    """Seconds that a weight update takes."""
    name: str = "simulated"

    def __post_init__(self) -> None:
        for name in ("slots", "context_length", "vocab_size", "prefill_chunk", "page_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} = {getattr(self, name)} must be at least 1")
        if self.kv_tokens is not None and self.kv_tokens < 4:  # noqa: PLR2004  # one of each
            raise ConfigError(f"kv_tokens = {self.kv_tokens} must be at least 4, or None")
        if self.preemption and not self.priorities:
            raise ConfigError("preemption needs priorities = True")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedTimings:
    """A row of the data: which model on which GPUs, and how well the fit holds."""

    name: str
    model: str
    system: str
    tp: int
    timings: EngineTimings
    kv_tokens: int | None
    """bf16 KV capacity, where known."""
    decode_mape_percent: float
    prefill_mape_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TimingTable:
    """All shipped timings and where they come from."""

    source: str
    rows: Mapping[str, PublishedTimings] = field(default_factory=dict)

    def __getitem__(self, name: str) -> PublishedTimings:
        try:
            return self.rows[name]
        except KeyError:
            known = ", ".join(sorted(self.rows))
            raise ConfigError(f"no timings {name!r}; there are: {known}") from None


def load_timings() -> TimingTable:
    """Read the table that ships with the package."""
    text = resources.files("agentflow.sim").joinpath("data/engines.json").read_text("utf-8")
    document = json.loads(text)
    rows = [_row(raw) for raw in document["timings"]]
    return TimingTable(source=document["source"], rows={row.name: row for row in rows})


def _row(raw: Mapping[str, Any]) -> PublishedTimings:
    coefficients = {key: raw[f"{key}_ms"] * _MS for key in ("a", "b", "c", "pa", "pb", "pg")}
    return PublishedTimings(
        name=raw["name"],
        model=raw["model"],
        system=raw["system"],
        tp=raw["tp"],
        timings=EngineTimings(**coefficients),
        kv_tokens=raw["kv_tokens"],
        decode_mape_percent=raw["decode_mape_percent"],
        prefill_mape_percent=raw["prefill_mape_percent"],
    )
