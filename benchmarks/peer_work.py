"""The workload of `benchmarks.peers`, and what a driver of it reports; needs nothing but Python.

A driver is `python peer_X.py WORKLOAD.json URL…`. It plays every episode: start, then turns of one
generation and one command each. It prints one line of JSON: see `report`.
"""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Episode(TypedDict):
    """One episode; times in seconds."""

    uid: str
    start_s: float
    prompt: int
    """Tokens of the first prompt."""
    tokens: int
    """Tokens of every turn."""
    commands_s: list[float]
    """One for each turn."""
    observation: int
    """Tokens appended after each command."""


class Workload(TypedDict):
    """What is played."""

    episodes: list[Episode]
    slots: int
    """Generations at once, over all servers."""
    containers: int
    """Environments at once."""


def make_workload(
    *, episodes: int, turns: int, slots: int, containers: int, prompt: int = 400
) -> Workload:
    """Draw one, always the same."""
    rng = random.Random(0)  # noqa: S311  # a workload, not a secret
    return Workload(
        episodes=[
            Episode(
                uid=f"{number:04d}",
                start_s=round(rng.uniform(0.2, 0.6), 3),
                prompt=prompt,
                tokens=rng.randint(8, 40),
                commands_s=[
                    round(min(rng.lognormvariate(-1.6, 1.0), 3.0), 3)
                    for _ in range(rng.randint(turns // 2, turns * 3 // 2))
                ],
                observation=60,
            )
            for number in range(episodes)
        ],
        slots=slots,
        containers=containers,
    )


def load(path: str) -> Workload:
    """Read what `benchmarks.peers` wrote."""
    workload: Workload = json.loads(Path(path).read_text())
    return workload


def report(
    play: Callable[[], Iterable[int]], cpu_s: Callable[[], float] = time.process_time
) -> None:
    """Call `play`, which returns each episode's generated tokens, and print what it took."""
    before, began = cpu_s(), time.monotonic()
    tokens = list(play())
    told: dict[str, Any] = {
        "wall_s": time.monotonic() - began,
        "cpu_s": cpu_s() - before,
        "tokens": sum(tokens),
        "episodes": len(tokens),
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(told), flush=True)
