"""python -m agentflow.engine.sglang_cpu install [--smollm] | serve [--smollm] [--port N]."""

from __future__ import annotations

import argparse
import logging
import signal
import sys
from typing import NoReturn

from agentflow.engine.sglang_cpu.install import SMOLLM, Layout, install, install_smollm
from agentflow.engine.sglang_cpu.serve import CpuServer
from agentflow.errors import AgentflowError


def main() -> None:
    """Install, or install and serve until interrupted."""
    parser = argparse.ArgumentParser(prog="python -m agentflow.engine.sglang_cpu")
    parser.add_argument("action", choices=["install", "serve"])
    parser.add_argument("--smollm", action="store_true", help=f"a real model, {SMOLLM}")
    parser.add_argument("--port", type=int, default=30000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    layout = Layout.default()
    install(layout)
    if options.smollm:
        install_smollm(layout)
    if options.action == "serve":
        serve(layout, model=SMOLLM if options.smollm else "a", port=options.port)


def serve(layout: Layout, *, model: str, port: int) -> None:
    """Serve until SIGINT or SIGTERM; prints the url when it answers."""
    signal.signal(signal.SIGTERM, _interrupt)
    with CpuServer(layout, layout.checkpoint(model), port=port) as server:
        print(f"ready: {server.url} (log: {server.log})", flush=True)  # noqa: T201  # the answer  # the answer
        try:
            signal.pause()
        except KeyboardInterrupt:
            return


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main()
    except AgentflowError as error:
        sys.exit(str(error))
