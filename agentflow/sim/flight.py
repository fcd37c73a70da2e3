"""Flight: a request at a simulated engine, who waits for it, and what of its tokens they have."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import TYPE_CHECKING

from agentflow.errors import EngineDied, GenerationAborted
from agentflow.sim.engine_messages import End
from agentflow.sim.speech import logprobs_of
from agentflow.types import FinishReason, GenerationResult

if TYPE_CHECKING:
    import asyncio

    from agentflow.protocols import TokenSink
    from agentflow.sim.sequence import Sequence


@dataclass(slots=True, kw_only=True)
class Flight:
    """One request on its way."""

    seq: Sequence
    end: asyncio.Future[End]
    sink: TokenSink
    delivered: int = 0
    """Tokens that the sink has."""

    def deliver(self, made: int, *, version: int) -> None:
        """Hand over what the sink lacks of the first `made` tokens, by the version that made it.

        `version` made those that the engine has not counted yet: its run of steps is under way.
        """
        seq, given = self.seq, self.delivered
        if made <= given:
            return
        spans = list(seq.spans)
        if made > seq.out and (not spans or spans[-1][1] != version):
            spans.append((seq.out, version))
        ends = [start for start, _ in spans[1:]] + [made]
        for (start, by), end in zip(spans, ends, strict=True):
            if end > given:
                ids = seq.made(max(start, given), end)
                logprobs = array("f", logprobs_of(ids).tobytes())
                self.sink.append(array("i", ids.tobytes()), logprobs, by)
        self.delivered = made

    def result(self, how: End) -> GenerationResult:
        """What the caller gets. Raises GenerationAborted, EngineDied."""
        seq = self.seq
        if how is End.ABORTED:
            raise GenerationAborted(f"{seq.rid} was aborted after {seq.out} tokens")
        if how is End.DIED:
            raise EngineDied(f"the engine died after {seq.out} tokens of {seq.rid}")
        return GenerationResult(
            finish=FinishReason.LENGTH if seq.matched is None else FinishReason.STOP,
            matched=seq.matched,
            cached_tokens=seq.cached_tokens,
            retractions=seq.retractions,
        )
