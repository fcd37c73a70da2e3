"""Many seeds of faults, one after the other or in several processes, and what they came to.

Whatever the number of processes, results come in the order of the seeds: the same sums, the same
last seed.
"""

from __future__ import annotations

import itertools
import logging
import os
import signal
import threading
from collections import Counter, deque
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context, parent_process
from typing import TYPE_CHECKING

from executors.virtual.fault_runs import run_with_faults

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from executors.virtual.drivers import Schedule
    from executors.virtual.fault_runs import FaultRun

_CHUNK = 20
"""Seeds that a process plays at a time: some tenths of a second."""


@dataclass(slots=True)
class FaultSums:
    """What seeds came to together."""

    seeds: int = 0
    episodes: int = 0
    turns: int = 0
    violations: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)

    def add(self, run: FaultRun) -> None:
        """Count one seed."""
        self.seeds += 1
        self.episodes += run.episodes
        self.turns += run.turns
        self.violations += len(run.violations)
        self.faults.update(run.faults)
        self.tokens.update(run.tokens)


def play_seeds(schedule: Schedule, *, first: int, jobs: int = 1) -> Generator[FaultRun, None, None]:
    """Play seeds from `first` on without end, in `jobs` processes; close the iterator to end it.

    Several processes are forked: call it while there is one thread.
    """
    if jobs == 1:
        with _without_warnings():
            yield from map(partial(run_with_faults, schedule=schedule), itertools.count(first))
        return
    with ProcessPoolExecutor(
        jobs, mp_context=get_context("fork"), initializer=_end_with_parent
    ) as pool:
        chunks = itertools.count(first, _CHUNK)
        ahead = deque(pool.submit(_play, schedule, next(chunks)) for _ in range(2 * jobs))
        try:
            while True:
                runs = ahead.popleft().result()
                ahead.append(pool.submit(_play, schedule, next(chunks)))
                yield from runs
        finally:
            pool.shutdown(cancel_futures=True)


def _play(schedule: Schedule, first: int) -> list[FaultRun]:
    with _without_warnings():
        return [run_with_faults(seed, schedule=schedule) for seed in range(first, first + _CHUNK)]


def _end_with_parent() -> None:
    """Leave interrupts to the parent, and do not outlive one that was killed and told nobody."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Lost workers and dead engines are what is played, and no news."""
    logs = [logging.getLogger(name) for name in ("agentflow", "executors")]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
