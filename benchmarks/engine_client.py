"""What a generation costs this process: our client beside httpx and aiohttp, in one run.

CPU time of this process alone, against a server in another process that answers from memory; then
the lag of the event loop under many open streams, beside the lag of an idle loop. The server has
the loop that SGLang has: where events come faster than a client takes them, one read brings several
of them, whichever client it is. `cpu_ratio_NAME` is what a client spends on one generation at every
concurrency, to what ours does; `cpu_ratio_NAME_100` at one. Fails when the loop is over
MAX_LAG_RATIO times as late as an idle one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from agentflow.engine.token_record import TokenRecord
from benchmarks.engine_rivals import CLIENTS, Ours
from benchmarks.engine_server import VOCAB
from benchmarks.report import output_file, positive, show, write_report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.engine_rivals import Client


PROMPT = 32_768
EVENTS = 200
RUNS = {1: 30, 100: 200, 1000: 1000}
"""Generations at each concurrency."""

OPEN_STREAMS = 1000
STARTS_PER_S = 20
TOKENS_PER_S = 25_000
CHUNK = 16
LAG_S = 10.0
TICK_S = 0.005
MAX_LAG_RATIO = 20.0
"""An idle loop is late by half a millisecond (p99); ten milliseconds is what a user may notice."""


def main() -> None:
    """Run everything, print a table, write the figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.engine_client")
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--rounds", type=positive, default=5, help="medians are over so many")
    parser.add_argument("--concurrency", type=positive, nargs="+", default=list(RUNS))
    parser.add_argument("--no-lag", action="store_true")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    for concurrency in options.concurrency:
        figures |= costs(concurrency, options.rounds)
    figures |= overall_ratios(figures)
    if not options.no_lag:
        figures |= lags()
    show(figures)
    config = {"prompt": PROMPT, "events": EVENTS, "rounds": options.rounds}
    write_report(options.json, figures, config=config)
    if figures.get("lag_ratio_idle", 0.0) > MAX_LAG_RATIO:
        raise SystemExit(f"a gate fails: lag_ratio_idle <= {MAX_LAG_RATIO:g}")


# --- CPU per generation -----------------------------------------------------------------------


def costs(concurrency: int, rounds: int) -> dict[str, float]:
    """Return CPU microseconds of each client, and the others' as ratios to ours."""
    runs = RUNS.get(concurrency, concurrency)
    with server(EVENTS, 1, 0.0, 0) as url:
        seen: dict[str, list[float]] = {name: [] for name in CLIENTS}
        for _ in range(rounds):
            for name, make in CLIENTS.items():
                cpu_s = asyncio.run(_cpu_s(make, url, concurrency, runs))
                seen[name].append(cpu_s / runs * 1e6)
    figures: dict[str, float] = {}
    for name, values in seen.items():
        figures[f"us_per_generation_{name}_{concurrency}"] = statistics.median(values)
        figures[f"us_per_token_{name}_{concurrency}"] = statistics.median(values) / EVENTS
        if name != "ours":
            ratios = [theirs / ours for theirs, ours in zip(values, seen["ours"], strict=True)]
            figures[f"cpu_ratio_{name}_{concurrency}"] = statistics.median(ratios)
    return figures


def overall_ratios(figures: dict[str, float]) -> dict[str, float]:
    """Return each rival's CPU to ours, of one generation at every concurrency that was run."""
    spent = {
        name: sum(v for k, v in figures.items() if _is_of(k, f"us_per_generation_{name}"))
        for name in CLIENTS
    }
    return {f"cpu_ratio_{n}": spent[n] / spent["ours"] for n in CLIENTS if n != "ours"}


def _is_of(figure: str, name: str) -> bool:
    """Whether a figure is `name`'s at one concurrency."""
    return figure.rpartition("_")[0] == name


async def _cpu_s(make: Callable[[str], Client], url: str, concurrency: int, runs: int) -> float:
    client = make(url)
    ids = np.random.default_rng(0).integers(0, VOCAB, PROMPT).tolist()
    await _generate_all(client, ids, range(concurrency), concurrency)  # opens the connections
    started = time.process_time()
    await _generate_all(client, ids, range(concurrency, concurrency + runs), concurrency)
    spent = time.process_time() - started
    await client.close()
    return spent


async def _generate_all(client: Client, ids: list[int], numbers: range, concurrency: int) -> None:
    waiting = iter(numbers)

    async def worker() -> None:
        for number in waiting:
            tokens = await client.generate(number, ids)
            assert tokens == EVENTS, f"{tokens} tokens instead of {EVENTS}"

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


# --- lag of the loop --------------------------------------------------------------------------


def lags() -> dict[str, float]:
    """Return how late a timer fires with many open streams, and in an idle loop."""
    idle = asyncio.run(_lag_of(LAG_S))
    interval_s = OPEN_STREAMS * CHUNK / TOKENS_PER_S
    events = round(OPEN_STREAMS / STARTS_PER_S / interval_s)
    with server(events, CHUNK, interval_s, OPEN_STREAMS) as url:
        busy, tokens_per_s = asyncio.run(_busy_lag(url))
    p99_idle, p99 = (float(np.percentile(lag, 99)) * 1e3 for lag in (idle, busy))
    return {
        "lag_p50_ms": float(np.percentile(busy, 50)) * 1e3,
        "lag_p99_ms": p99,
        "lag_idle_p99_ms": p99_idle,
        "lag_ratio_idle": p99 / p99_idle,
        "lag_tokens_per_s": tokens_per_s,
    }


async def _lag_of(seconds: float) -> list[float]:
    loop, lags = asyncio.get_running_loop(), []
    end = loop.time() + seconds
    while (now := loop.time()) < end:
        await asyncio.sleep(TICK_S)
        lags.append(max(0.0, loop.time() - now - TICK_S))
    return lags


class Meter:
    """Counts what all records received."""

    tokens = 0


class MeteredRecord(TokenRecord):
    """A record whose tokens are counted as they come."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take tokens."""
        super().append(ids, logprobs, version)
        self._meter.tokens += len(ids)


async def _busy_lag(url: str) -> tuple[list[float], float]:
    client = Ours(url)
    ids = np.random.default_rng(0).integers(0, VOCAB, PROMPT).tolist()
    meter = Meter()

    async def one(number: int) -> None:
        await client.generate_into(MeteredRecord(meter), number, ids)

    async with asyncio.TaskGroup() as group:
        tasks = []
        for number in range(OPEN_STREAMS):
            tasks.append(group.create_task(one(number)))
            await asyncio.sleep(0.002)
        measuring, before = group.create_task(_lag_of(LAG_S)), meter.tokens
        for number in range(round(LAG_S * STARTS_PER_S)):
            tasks.append(group.create_task(one(OPEN_STREAMS + number)))
            await asyncio.sleep(1 / STARTS_PER_S)
        lag = await measuring
        tokens_per_s = (meter.tokens - before) / LAG_S
        for task in tasks:
            task.cancel()
    await client.close()
    return lag, tokens_per_s


# --- around it --------------------------------------------------------------------------------


@contextmanager
def server(events: int, tokens: int, interval_s: float, staggered: int) -> Iterator[str]:
    """Run the server in a process of its own; gives its url."""
    arguments = [str(value) for value in (events, tokens, interval_s, staggered)]
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.engine_server", *arguments],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


if __name__ == "__main__":
    main()
