"""Figures: what a run's state comes to in numbers, under the names of its metrics.

Pure. One list serves Prometheus and metrics.jsonl, so that they cannot differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from agentflow.observe.doing import Doing
from agentflow.observe.run_state import TOKEN_CAUSES, EnvState

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from agentflow.observe.histogram import Histogram
    from agentflow.observe.run_state import RunState

PREFIX = "agentflow_"

Labels = tuple[str, ...]


class FigureKind(StrEnum):
    """What a figure is, in Prometheus's words."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One metric with the values of all its labels."""

    name: str
    """Without `agentflow_`; a counter's ends in `_total`."""
    kind: FigureKind
    help: str
    labels: Labels = ()
    values: Mapping[Labels, float] = field(default_factory=dict)
    histograms: Mapping[Labels, Histogram] = field(default_factory=dict)


def figures(
    state: RunState,
    *,
    now: float,
    lags: Mapping[str, float],
    gauges: Mapping[str, Mapping[str, float]] | None = None,
) -> list[Figure]:
    """Give every metric at `now` (as `EventRecord.time`).

    `lags` are seconds, by loop; `gauges` what environments wait for (`protocols.Gauging`).
    """
    state.books.settle(now)
    return [
        *_queues(state),
        *_env_stages(gauges or {}),
        *_slots(state),
        *_counts(state),
        *_updates(state),
        _lag(lags),
    ]


def flat(found: list[Figure]) -> dict[str, float]:
    """Give the same as `name{label=value,…}` → number; of a histogram its count and sum."""
    return dict(_flat(found))


def _queues(state: RunState) -> Iterator[Figure]:
    yield Figure(
        name="queue_depth",
        kind=FigureKind.GAUGE,
        help="Episodes that wait for a stage.",
        labels=("stage",),
        values={(stage,): n for stage, n in state.waiting().items()},
    )
    yield Figure(
        name="queue_wait_seconds",
        kind=FigureKind.HISTOGRAM,
        help="How long those waited that got into a stage.",
        labels=("stage",),
        histograms={(stage,): waits for stage, waits in state.waits.items()},
    )
    yield Figure(
        name="episodes",
        kind=FigureKind.GAUGE,
        help="Episodes by what they are doing.",
        labels=("doing",),
        values={(str(doing),): state.doing[doing] for doing in Doing},
    )
    envs: dict[Labels, float] = {(str(env),): state.envs[env] for env in EnvState}
    yield Figure(
        name="envs",
        kind=FigureKind.GAUGE,
        help="Environments by state; `judging` are those of rewards under way.",
        labels=("state",),
        values={**envs, ("judging",): state.doing[Doing.REWARDING]},
    )


_ENV_STAGES: Final = (
    ("env_stage_limit", FigureKind.GAUGE, "limit", "Slots of a stage of environments."),
    ("env_stage_in_use", FigureKind.GAUGE, "in_use", "Its slots in use."),
    ("env_stage_waiting", FigureKind.GAUGE, "waiting", "Who waits for one."),
    ("env_stage_acquired_total", FigureKind.COUNTER, "acquired", "Who got one."),
    ("env_stage_waited_seconds_total", FigureKind.COUNTER, "waited_s", "How long they waited."),
    ("env_stage_longest_wait_seconds", FigureKind.GAUGE, "longest_wait_s", "The longest of these."),
    ("env_pool_ready", FigureKind.GAUGE, "ready", "Environments kept ready."),
    ("env_pool_coming", FigureKind.GAUGE, "coming", "Environments made to be kept ready."),
    ("env_pool_hits_total", FigureKind.COUNTER, "hits", "Starts that a ready one served."),
    ("env_pool_misses_total", FigureKind.COUNTER, "misses", "Starts that found none ready."),
)
"""Name, kind, gauge and meaning of what an environment builder tells."""


def _env_stages(gauges: Mapping[str, Mapping[str, float]]) -> Iterator[Figure]:
    """Give nothing where no builder tells anything."""
    for name, kind, gauge, meaning in _ENV_STAGES:
        values: dict[Labels, float] = {
            (stage,): told[gauge] for stage, told in gauges.items() if gauge in told
        }
        if values:
            yield Figure(name=name, kind=kind, help=meaning, labels=("stage",), values=values)


def _slots(state: RunState) -> Iterator[Figure]:
    replicas = state.books.replicas
    yield Figure(
        name="slots",
        kind=FigureKind.GAUGE,
        help="Generation slots.",
        labels=("replica",),
        values={(name,): slots.total for name, slots in replicas.items()},
    )
    yield Figure(
        name="slots_busy",
        kind=FigureKind.GAUGE,
        help="Generation slots in use.",
        labels=("replica",),
        values={(name,): slots.busy for name, slots in replicas.items()},
    )
    yield Figure(
        name="slot_busy_seconds_total",
        kind=FigureKind.COUNTER,
        help="Seconds that slots were in use, summed over them.",
        labels=("replica",),
        values={(name,): slots.busy_s for name, slots in replicas.items()},
    )
    yield Figure(
        name="slot_idle_seconds_total",
        kind=FigureKind.COUNTER,
        help="Seconds that slots stood idle, summed over them, by what they waited for.",
        labels=("replica", "reason"),
        values={
            (name, str(reason)): seconds
            for name, slots in replicas.items()
            for reason, seconds in slots.idle_s.items()
        },
    )


def _counts(state: RunState) -> Iterator[Figure]:
    yield Figure(
        name="tokens_received_total",
        kind=FigureKind.COUNTER,
        help="Tokens that engines generated.",
        values={(): state.tokens["received"]},
    )
    yield Figure(
        name="tokens_total",
        kind=FigureKind.COUNTER,
        help="Generated tokens of ended episodes, by what became of them then.",
        labels=("cause",),
        values={(cause,): state.tokens[cause] for cause in TOKEN_CAUSES},
    )
    yield Figure(
        name="preemptions_total",
        kind=FigureKind.COUNTER,
        help="Generations cut short, by reason.",
        labels=("reason",),
        values={(reason,): state.preemptions[reason] for reason in ("priority", "weight_sync")},
    )
    yield Figure(
        name="episodes_ended_total",
        kind=FigureKind.COUNTER,
        help="Episodes that ended, by class and cause.",
        labels=("status", "cause"),
        values={labels: float(count) for labels, count in state.ended.items()},
    )


def _updates(state: RunState) -> Iterator[Figure]:
    yield Figure(
        name="weight_sync_seconds",
        kind=FigureKind.HISTOGRAM,
        help="Weight updates, by phase.",
        labels=("phase",),
        histograms={(phase,): seconds for phase, seconds in state.sync_s.items()},
    )
    yield Figure(
        name="staleness_versions",
        kind=FigureKind.HISTOGRAM,
        help="Versions between the oldest that generated an ended sample and the newest known.",
        histograms={(): state.staleness},
    )
    yield Figure(
        name="weight_version",
        kind=FigureKind.GAUGE,
        help="Newest weight version known.",
        values={(): state.version},
    )


def _lag(lags: Mapping[str, float]) -> Figure:
    return Figure(
        name="loop_lag_seconds",
        kind=FigureKind.GAUGE,
        help="Longest that a timer of an event loop was late since the last look.",
        labels=("loop",),
        values={(loop,): lag for loop, lag in lags.items()},
    )


def _flat(found: list[Figure]) -> Iterator[tuple[str, float]]:
    for figure in found:
        for labels, value in figure.values.items():
            yield _name(figure, labels), value
        for labels, histogram in figure.histograms.items():
            yield _name(figure, labels, "_count"), histogram.count
            yield _name(figure, labels, "_sum"), histogram.sum


def _name(figure: Figure, labels: Labels, suffix: str = "") -> str:
    pairs = ",".join(f"{k}={v}" for k, v in zip(figure.labels, labels, strict=True))
    return f"{PREFIX}{figure.name}{suffix}" + (f"{{{pairs}}}" if pairs else "")
