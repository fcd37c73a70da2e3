"""The command `agentflow`: arguments in, exit codes and tables out; no logic of its own.

app      the commands and their options, exit codes
running  one run: Ctrl-C, progress, the result table
report   tables
"""

from __future__ import annotations

from executors.cli.app import main

__all__ = ["main"]
