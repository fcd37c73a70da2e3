"""The SGLang engine: token ids in, token ids out, exact through aborts, pauses and updates.

engine ─ gate ─ routing ─▶ replica ─ body ─▶ http1 ─▶ server
                              ▲ call ◀─ tokens ◀─ events ◀─┘        (each generation)
engine ─ weights, load, describe ─▶ admin ─▶ server                 (everything else)
"""

from agentflow.engine.sglang.config import Deadlines, SglangConfig
from agentflow.engine.sglang.engine import SglangEngine
from agentflow.engine.sglang.load import ReplicaLoad
from agentflow.engine.sglang.weights import PauseMode

__all__ = ["Deadlines", "PauseMode", "ReplicaLoad", "SglangConfig", "SglangEngine"]
