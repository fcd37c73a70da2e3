"""A real SGLang server on a CPU, for tests and demonstrations: installed, given a model, served.

install ─▶ checkpoint (in the server's own environment) ─▶ serve

Everything lives in the cache directory, outside any checkout; production imports none of it.
"""

from agentflow.engine.sglang_cpu.install import Layout, installed
from agentflow.engine.sglang_cpu.serve import CpuServer

__all__ = ["CpuServer", "Layout", "installed"]
