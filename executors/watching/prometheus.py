"""Serves figures to Prometheus, from a registry of their own, on a thread of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from agentflow.errors import ConfigError
from agentflow.observe.figures import PREFIX, Figure, FigureKind

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class MetricsServer:
    """Answers scrapes with what `look` gives at that moment."""

    def __init__(self, look: Callable[[], list[Figure]], *, host: str, port: int) -> None:
        """Listen at once. Raises ConfigError when that cannot be."""
        registry = CollectorRegistry()
        registry.register(_Figures(look))
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            raise ConfigError(
                f"observe.metrics_port: {port} at {host}: {error.strerror or error}"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Answer no more. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Figures(Collector):
    def __init__(self, look: Callable[[], list[Figure]]) -> None:
        self._look = look

    def describe(self) -> list[Metric]:
        """Say nothing before the first scrape; registering would look otherwise."""
        return []

    def collect(self) -> Iterator[Metric]:
        return map(_family, self._look())


def _family(figure: Figure) -> Metric:
    name = PREFIX + figure.name
    match figure.kind:
        case FigureKind.GAUGE:
            gauge = GaugeMetricFamily(name, figure.help, labels=figure.labels)
            for labels, value in figure.values.items():
                gauge.add_metric(labels, value)
            return gauge
        case FigureKind.COUNTER:
            counter = CounterMetricFamily(name, figure.help, labels=figure.labels)
            for labels, value in figure.values.items():
                counter.add_metric(labels, value)
            return counter
        case FigureKind.HISTOGRAM:
            family = HistogramMetricFamily(name, figure.help, labels=figure.labels)
            for labels, histogram in figure.histograms.items():
                family.add_metric(labels, histogram.cumulative(), histogram.sum)
            return family
        case other:
            assert_never(other)
