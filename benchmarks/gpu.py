"""Live, on a GPU: the same episodes by trajectory and by action, with what the GPU and engine say.

`python -m benchmarks.gpu --url http://HOST:PORT --json F` compares on a running SGLang server,
whose `--max-running-requests` is given as --slots; NVML is read on this machine (`pip install
nvidia-ml-py`). `--cpu` plays at toy size on the real CPU server that `make sglang-cpu` installs,
without NVML. Generation is real, with forced lengths; commands take drawn times and do nothing.

    wall_s, tokens_s    of the whole, by policy
    gpu                 NVML utilisation, the mean over time and GPUs
    slots, kv           running requests over slots, KV memory in use: the engine's own loads
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.live_play import POLICIES, play
from benchmarks.peer_work import make_workload
from benchmarks.report import output_file, positive, write_report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from benchmarks.peer_work import Workload

LOOK_S: Final = 0.25
"""Between two looks at the GPU and the engine."""
CPU_SLOTS: Final = 4
_SHORT: Final = 100
"""Tokens of a prompt: the toy model has fewer ids than a usual prompt is long."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, write; exit code 2 when something is missing."""
    options = _parser().parse_args(arguments)
    if options.cpu:
        from agentflow.engine.sglang_cpu import CpuServer, Layout, installed  # noqa: PLC0415

        layout = Layout.default()
        if not installed(layout):
            print("missing: the CPU server; `make sglang-cpu` installs it")
            return 2
        with CpuServer(layout, layout.checkpoint("a")) as server:
            work = make_workload(episodes=8, turns=3, slots=CPU_SLOTS, containers=8, prompt=_SHORT)
            return _compare(work, server.url, nvml=None, path=options.json)
    nvml = _nvml()
    missing = [] if nvml is not None else ["a GPU that NVML sees (`pip install nvidia-ml-py`)"]
    if options.url is None:
        missing.append("--url of an SGLang server (`python -m sglang.launch_server …`)")
    elif not _answers(options.url):
        missing.append(f"an answer from {options.url}/v1/loads")
    if missing:
        print("missing: " + "; ".join(missing) + "; or try --cpu")
        return 2
    work = make_workload(
        episodes=options.episodes, turns=12, slots=options.slots, containers=2 * options.slots
    )
    return _compare(work, options.url, nvml=nvml, path=options.json)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu")
    parser.add_argument("--url", help="of a running SGLang server")
    parser.add_argument("--slots", type=positive, default=64, help="its --max-running-requests")
    parser.add_argument("--episodes", type=positive, default=256)
    parser.add_argument("--cpu", action="store_true", help="toy size, on the real CPU server")
    parser.add_argument("--json", type=output_file, help="write the figures here")
    return parser


def _compare(work: Workload, url: str, *, nvml: Any, path: Path | None) -> int:
    figures: dict[str, float] = {}
    for policy in POLICIES:
        with _looking(url, nvml, slots=work["slots"]) as seen:
            began = time.monotonic()
            tokens = asyncio.run(play(work, (url,), policy=policy, vocab_size=None))
            wall_s = time.monotonic() - began
        assert len(tokens) == len(work["episodes"]), "episodes are missing"
        columns = {"wall_s": wall_s, "tokens_s": sum(tokens) / wall_s}
        columns |= {name: fmean(values) for name, values in seen.items() if values}
        figures |= {f"{column}.{policy}": value for column, value in columns.items()}
    for policy in POLICIES:
        figures[f"wall_ratio.{policy}"] = figures[f"wall_s.{policy}"] / figures["wall_s.fcfs"]
    show(figures)
    config = {"episodes": len(work["episodes"]), "slots": work["slots"], "url": url}
    write_report(path, figures, config=config)
    return 0


@contextmanager
def _looking(url: str, nvml: Any, *, slots: int) -> Iterator[dict[str, list[float]]]:
    """Look at GPU and engine until the block ends."""
    seen: dict[str, list[float]] = {"gpu": [], "slots": [], "kv": []}
    done = threading.Event()

    def look() -> None:
        while not done.wait(LOOK_S):
            ranks = _loads(url)["loads"]
            seen["slots"].append(sum(rank["num_running_reqs"] for rank in ranks) / slots)
            seen["kv"].append(fmean(rank["token_usage"] for rank in ranks))
            if nvml is not None:
                seen["gpu"].append(fmean(_utilisation(nvml)))

    thread = threading.Thread(target=look, name="looking")
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


def _loads(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/v1/loads", timeout=30) as answer:  # noqa: S310  # the user's
        loads: dict[str, Any] = json.load(answer)
    return loads


def _answers(url: str) -> bool:
    try:
        return bool(_loads(url)["loads"])
    except (urllib.error.URLError, TimeoutError, ValueError, KeyError):
        return False


def _nvml() -> Any:
    """Return NVML's module, begun, if there is a GPU that it sees."""
    try:
        import pynvml  # noqa: PLC0415  # optional
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml if pynvml.nvmlDeviceGetCount() else None


def _utilisation(nvml: Any) -> list[float]:
    """Share of the last moments in which each GPU ran a kernel, 0 to 1."""
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]


def show(figures: dict[str, float]) -> None:
    """Print a row a policy."""
    columns = ("wall_s", "wall_ratio", "tokens_s", "gpu", "slots", "kv")
    table = Table("policy", *columns)
    for policy in POLICIES:
        cells = (figures.get(f"{column}.{policy}") for column in columns)
        table.add_row(policy, *("-" if cell is None else f"{cell:,.3g}" for cell in cells))
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
