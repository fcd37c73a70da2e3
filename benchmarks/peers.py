"""Beside others: our executor, mini-swe-agent's own agent in threads, verl's LLM-server client.

`python -m benchmarks.peers --json F`. All play one workload against fake SGLang servers with slots,
in processes of their own; once, in the middle, every running request is aborted, as a weight update
does it. Optional installs, outside CI: verl 0.9 needs an environment with ray and torch, named by
--verl-python; `--install-verl FOLDER` makes one (1.5 GB, most of it torch for CPUs).

    wall_ratio      their wall time over ours on as many servers
    slot_use        share of slots in use over the run
    cpu_ms_turn     processor time of the driving process for one turn
    tokens_lost     decoded by the servers and in nobody's trajectory
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.peer_work import make_workload
from benchmarks.report import output_file, positive, write_report

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.peer_work import Workload

STEP_S: Final = 0.02
"""Of the servers: fifty tokens a second for each request."""
ABORT_AFTER_S: Final = 4.0
PAUSED_S: Final = 0.5
VERL: Final = (
    ("torch==2.13.0+cpu", "--extra-index-url", "https://download.pytorch.org/whl/cpu"),
    ("ray>=2.41,<3", "transformers>=5.5.3,!=5.6.0,<5.11", "hydra-core>=1.3,<2", "numpy>=2"),
    ("fastapi", "uvicorn", "aiohttp", "cachetools", "orjson", "codetiming", "dill"),
    ("importlib_metadata", "cloudpickle", "pyvers>=0.1,<0.2"),
    ("--no-deps", "verl==0.9.0", "tensordict==0.10.0"),
)
"""What importing verl's client takes; the rest of its dependencies are for training."""


def main() -> None:
    """Play with everybody there is, print the table, write the file."""
    parser = _parser()
    options = parser.parse_args()
    if options.verl_python is not None and not os.access(options.verl_python, os.X_OK):
        parser.error(f"argument --verl-python: {options.verl_python} is no interpreter")
    if options.install_verl is not None:
        install_verl(options.install_verl)
        return
    workload = make_workload(
        episodes=options.episodes, turns=options.turns, slots=16, containers=options.containers
    )
    ours, mini = [sys.executable, "-m", "benchmarks.peer_ours"], "benchmarks.peer_mini"
    figures = _named("ours_1", play(workload, ours, servers=1))
    figures |= _named("mini_1", play(workload, [sys.executable, "-m", mini], servers=1))
    figures |= _named("ours_2", play(workload, ours, servers=2))
    if options.verl_python is None:
        print("verl is left out: name an interpreter that imports it with --verl-python")
    else:
        verl = [str(options.verl_python), "-m", "benchmarks.peer_verl"]
        figures |= _named("verl_2", play(workload, verl, servers=2))
    for peer, own in (("mini_1", "ours_1"), ("verl_2", "ours_2")):
        if f"wall_s.{peer}" in figures:
            name = peer.partition("_")[0]
            for column, figure in (("wall_s", "wall_ratio"), ("cpu_ms_turn", "cpu_ratio")):
                figures[f"{figure}.{name}"] = (
                    figures[f"{column}.{peer}"] / figures[f"{column}.{own}"]
                )
    show(figures)
    config = {"episodes": options.episodes, "turns": options.turns, "step_s": STEP_S}
    write_report(options.json, figures, config={**config, "containers": options.containers})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers")
    parser.add_argument("--json", type=output_file, help="write the figures here")
    parser.add_argument("--episodes", type=positive, default=96)
    parser.add_argument("--turns", type=positive, default=8, help="of an episode, in the mean")
    parser.add_argument("--containers", type=positive, default=48)
    parser.add_argument("--verl-python", type=Path, help="an interpreter that imports verl 0.9")
    parser.add_argument("--install-verl", type=Path, help="make an environment with it, and end")
    return parser


def install_verl(folder: Path) -> None:
    """Make a virtual environment in which verl's client can be imported."""
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = folder / "bin" / "python"
    for packages in VERL:
        command = [str(python), "-m", "pip", "install", "--quiet", *packages]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit(f"pip could not install {' '.join(packages)}: see above")
    subprocess.run([str(python), "-c", "import benchmarks.peer_verl"], check=True)
    print(f"now: python -m benchmarks.peers --verl-python {python}")


def play(
    workload: Workload,
    driver: list[str],
    *,
    servers: int,
    abort_after_s: float | None = ABORT_AFTER_S,
) -> dict[str, float]:
    """Let a driver play the workload on so many servers, and return its columns."""
    slots = workload["slots"]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "workload.json"
        path.write_text(json.dumps(workload))
        running = [
            stack.enter_context(_server(slots // servers, abort_after_s)) for _ in range(servers)
        ]
        urls = [server.url for server in running]
        done = subprocess.run(
            [*driver, str(path), *urls], stdout=subprocess.PIPE, text=True, check=True
        )
        told: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
        served = [server.stop() for server in running]
    turns = sum(len(episode["commands_s"]) for episode in workload["episodes"])
    assert told["episodes"] == len(workload["episodes"]), "episodes are missing"
    return {
        "wall_s": told["wall_s"],
        "slot_use": sum(one["slot_s"] for one in served) / (slots * told["wall_s"]),
        "cpu_ms_turn": told["cpu_s"] / turns * 1e3,
        "tokens_lost": sum(one["decoded"] for one in served) - told["tokens"],
        "peak_mb": told["peak_mb"],
    }


class _Server:
    """A fake server's process; its requests are aborted once, some time after the first came."""

    def __init__(self, slots: int, abort_after_s: float | None) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peer_server", str(slots), str(STEP_S)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        self._abort_after_s = abort_after_s
        self._ended = threading.Event()
        self._aborting = threading.Thread(target=self._abort_all, daemon=True)
        self._aborting.start()

    def _abort_all(self) -> None:
        while not self._running():
            if self._ended.wait(0.1):
                return
        if self._ended.wait(self._abort_after_s) or self._abort_after_s is None:
            return
        _post(f"{self.url}/pause_generation", {"mode": "abort"})
        time.sleep(PAUSED_S)
        _post(f"{self.url}/continue_generation", {})

    def _running(self) -> bool:
        with urllib.request.urlopen(f"{self.url}/v1/loads", timeout=10) as answer:  # noqa: S310  # ours
            load: dict[str, Any] = json.load(answer)
        return any(rank["num_running_reqs"] for rank in load["loads"])

    def stop(self) -> dict[str, float]:
        """End it, and return what it did."""
        self._ended.set()
        self._aborting.join()
        told, _ = self._process.communicate()
        served: dict[str, float] = json.loads(told)
        return served

    def kill(self) -> None:
        """End it at once, if it has not ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _server(slots: int, abort_after_s: float | None) -> Iterator[_Server]:
    server = _Server(slots, abort_after_s)
    try:
        yield server
    finally:
        server.kill()


def _post(url: str, body: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310  # ours
    urllib.request.urlopen(request, timeout=60).close()  # noqa: S310  # ours


def _named(driver: str, columns: dict[str, float]) -> dict[str, float]:
    return {f"{column}.{driver}": value for column, value in columns.items()}


def show(figures: dict[str, float]) -> None:
    """Print the columns, a row a driver, and the ratios to ours."""
    drivers = [name.partition(".")[2] for name in figures if name.startswith("wall_s.")]
    columns = ("wall_s", "slot_use", "cpu_ms_turn", "tokens_lost", "peak_mb")
    table = Table("driver and servers", *columns)
    for driver in drivers:
        table.add_row(driver, *(f"{figures[f'{column}.{driver}']:,.3g}" for column in columns))
    Console().print(table)
    for name, value in figures.items():
        if "ratio" in name:
            print(f"{name:20} {value:.2f}")


if __name__ == "__main__":
    main()
