"""python -m agentflow.engine.sglang_cpu install | serve [--smollm] [--port N] [-- COMMAND ...].

`serve` without a command serves until interrupted. With one it serves while the command runs and
ends as it does; `{url}` and `{model}` in it are filled in, AGENTFLOW_SGLANG_URL is set for it.
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import subprocess
import sys
from typing import NoReturn

from agentflow.engine.sglang_cpu.install import SMOLLM, Layout, install, install_smollm
from agentflow.engine.sglang_cpu.serve import CpuServer
from agentflow.errors import AgentflowError


def main() -> int:
    """Install, or install and serve; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m agentflow.engine.sglang_cpu")
    parser.add_argument("action", choices=["install", "serve"])
    parser.add_argument("--smollm", action="store_true", help=f"a real model, {SMOLLM}")
    parser.add_argument("--port", type=int, default=None, help="default: a free one")
    parser.epilog = "After -- comes a command to run beside the server."
    own, command = _split(sys.argv[1:])
    options = parser.parse_args(own)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    layout = Layout.default()
    install(layout)
    if options.smollm:
        install_smollm(layout)
    if options.action == "install":
        return 0
    model = SMOLLM if options.smollm else "a"
    return serve(layout, model=model, port=options.port, command=command)


def serve(layout: Layout, *, model: str, port: int | None, command: list[str]) -> int:
    """Serve while `command` runs, or until SIGINT or SIGTERM."""
    signal.signal(signal.SIGTERM, _interrupt)
    folder = layout.checkpoint(model)
    try:
        with CpuServer(layout, folder, port=port) as server:
            print(f"ready: {server.url} (log: {server.log})", flush=True)  # noqa: T201  # the answer
            if not command:
                signal.pause()
            words = [
                w.replace("{url}", server.url).replace("{model}", str(folder)) for w in command
            ]
            environment = {**os.environ, "AGENTFLOW_SGLANG_URL": server.url}
            return subprocess.run(words, env=environment, check=False).returncode
    except KeyboardInterrupt:
        return 0


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Split at the first --."""
    at = words.index("--") if "--" in words else len(words)
    return words[:at], words[at + 1 :]


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        sys.exit(main())
    except AgentflowError as error:
        sys.exit(str(error))
