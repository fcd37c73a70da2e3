"""The SGLang engine: token ids in, token ids out, exact through aborts, pauses and updates.

engine ─ gate ─ routing ─▶ replica ─ body ─▶ http1 ─▶ server
                              ▲ call ◀─ tokens ◀─ events ◀─┘        (each generation)
engine ─ weights, load, describe ─▶ admin ─▶ server                 (everything else)

    record = TokenRecord()
    record.extend_rendered(prompt_ids)
    sampling, rid = SamplingParams(max_new_tokens=256), RidFactory().make
    async with SglangEngine(SglangConfig(urls=("http://127.0.0.1:30000",))) as engine:
        first = rid(EpisodeId(uid="mine"), attempt=0, generation=0)
        request = GenerationRequest(rid=first, input_ids=record.ids, sampling=sampling)
        result = await engine.generate(request, record)

The record then holds ids, log-probs and versions. After GenerationAborted it holds what had come:
generate again from `record.ids`, under a new rid and with what is left of the budget. `TurnModel`
does so, and finds stop strings across the seam. A generation that is cancelled closes its
connection, by which the server ends it within about two seconds; an abort ends it at once.
"""

from agentflow.engine.sglang.config import Deadlines, SglangConfig
from agentflow.engine.sglang.engine import SglangEngine
from agentflow.engine.sglang.load import ReplicaLoad
from agentflow.engine.sglang.weights import PauseMode

__all__ = ["Deadlines", "PauseMode", "ReplicaLoad", "SglangConfig", "SglangEngine"]
