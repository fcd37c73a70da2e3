"""Runs the plugged-in parts in the foreground, as the command does; argv: out, JSON of sections."""

import json
import signal
import sys
from pathlib import Path

import parts
import typer

from executors.cli import report, running
from executors.cli.exits import told_in_one_line
from executors.runs.session import Rollout


def main() -> int:
    """Run, and return the exit code; hear SIGHUP also where `nohup` runs the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with told_in_one_line(debug=False):
            config = parts.make_config(Path(sys.argv[1]), **json.loads(sys.argv[2]))
            watcher = report.make_watcher()
            rollout = Rollout(
                config, watcher=watcher, make_engine=parts.make_engine, load_tasks=parts.make_tasks
            )
            return running.run(rollout, grace_s=config.rollout.stop_grace_s, watcher=watcher)
    except typer.Exit as end:
        return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
