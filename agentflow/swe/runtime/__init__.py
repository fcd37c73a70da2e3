"""Runtimes: put a task into an environment, read the patch out, judge it in a fresh one.

bootstrap ──▶ (agent works) ──▶ diff ──patch──▶ eval in a fresh environment ──▶ Verdict
"""

from agentflow.swe.runtime.pytest_runtime import PytestRuntime, PytestRuntimeBuilder
from agentflow.swe.runtime.verdict import Reason, Verdict

__all__ = ["PytestRuntime", "PytestRuntimeBuilder", "Reason", "Verdict"]
