"""A fake SGLang server: the real one's wire, for fast tests, with faults on demand.

server ─ stream ─ scheduler ─ model        (one /generate answer; slots, pauses, aborts; tokens)
       └ calls ─ wire                      (everything else; the observed bodies)
"""

from agentflow.engine.fake_sglang.faults import Faults
from agentflow.engine.fake_sglang.model import FakeModel
from agentflow.engine.fake_sglang.server import FakeOptions, FakeSglang

__all__ = ["FakeModel", "FakeOptions", "FakeSglang", "Faults"]
