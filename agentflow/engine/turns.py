"""TurnModel: one episode's conversation with an engine, exact to the token.

Owns how far the conversation has been rendered into the episode's TokenRecord and the turn that is
open. Renders only what is new, never what was generated; an aborted turn stays open, and the next
call goes on from its partial tokens with what is left of its budget.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from agentflow.engine.seam import StopStrings
from agentflow.errors import ContextFull, GenerationAborted
from agentflow.types import (
    FinishReason,
    GenerationRequest,
    GenerationResult,
    SamplingParams,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.renderer import ChatRenderer
    from agentflow.engine.rids import RidFactory
    from agentflow.engine.token_record import TokenRecord
    from agentflow.protocols import Model
    from agentflow.types import EpisodeId, Message, ModelInfo

_ROLE_AND_CONTENT = itemgetter("role", "content")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One finished turn of the assistant."""

    text: str
    """The generated ids as text, without the token that ends the turn."""
    finish: FinishReason
    tokens: int
    """Generated ids, over all continuations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineAccess:
    """An engine and how to chat with it; what episodes share, and never pickled with them."""

    engine: Model
    renderer: ChatRenderer
    rids: RidFactory
    sampling: SamplingParams = field(default_factory=SamplingParams)
    """Of every episode that does not bring its own."""


class TurnModel:
    """The assistant of one episode. Pickles without its engine; `bind` gives it one again."""

    def __init__(
        self,
        *,
        episode: EpisodeId,
        record: TokenRecord,
        sampling: SamplingParams,
        access: EngineAccess,
        attempt: int = 0,
    ) -> None:
        self._episode = episode
        self._record = record
        self._sampling = sampling
        self._access: EngineAccess | None = access
        self._attempt = attempt
        self._requests = 0
        self._rendered: list[tuple[str, str]] = []
        self._turn_start: int | None = None
        self._turn_ended = True
        self._generating = self._abort_asked = False
        self._primed: tuple[Sequence[int], Sequence[float], Sequence[int]] | None = None
        self.priority: int | None = None
        """Of its requests, where the engine orders its queue by it."""
        self.rid: str | None = None
        """The request in flight; what an abort must name."""
        self.turns = 0
        """Turns begun."""
        self.received = 0
        """Tokens that engines generated, those lost to forks included."""
        self.generation_s = 0.0
        """Seconds of the loop's clock spent in requests."""
        self.forks = 0
        """How often somebody rewrote the history, so that the record had to start over."""
        self.forked_tokens = 0
        """Generated tokens lost to forks."""

    def bind(self, access: EngineAccess, *, attempt: int) -> None:
        """Attach live parts for a new attempt (after an abort, on another engine, unpickled).

        Requests are counted on, so that no rid is used twice even within one attempt.
        """
        self._access = access
        self._attempt = attempt

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_access": None, "rid": None}

    @property
    def turn_start(self) -> int | None:
        """Where in the record the open turn's tokens begin; None while no turn is open."""
        return self._turn_start

    @property
    def lost_tokens(self) -> int:
        """Generated tokens that are in no record: lost to forks, or not taken in yet."""
        return self.forked_tokens + (len(self._primed[0]) if self._primed is not None else 0)

    def prime(
        self, turn: int, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> bool:
        """Take tokens that an engine gave for the turn-th turn before this process lived.

        The turn that is open goes on with what it lacks of them; the next one begins with them.
        False: they belong to neither, and are left out.
        """
        if self._turn_start is not None and turn == self.turns:
            have = len(self._record) - self._turn_start
            self._append_runs(ids[have:], logprobs[have:], versions[have:])
            return True
        if self._turn_start is None and turn == self.turns + 1:
            self._primed = (ids, logprobs, versions)
            return True
        return False

    def _append_runs(
        self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]
    ) -> None:
        for one, logprob, version in zip(ids, logprobs, versions, strict=True):
            self._record.append([one], [logprob], version)

    async def generate(self, messages: Sequence[Message]) -> Turn:
        """Generate the assistant's answer to `messages`, or finish the turn that was aborted.

        Raises GenerationAborted (call again to go on), ContextFull, or another EngineError. Other
        messages than those of the turn that is open are a fork, like any rewritten history.
        """
        if self._generating:
            raise RuntimeError(f"{self._episode} generates already: one turn at a time")
        self._generating = True
        try:
            return await self._generate(messages, self._bound())
        finally:
            self._generating = False

    def begin_step(self) -> None:
        """Forget an abort that was asked for when there was nothing left to abort."""
        self._abort_asked = False

    async def abort(self) -> None:
        """End the generation of this step, also one whose request has not been sent yet."""
        if self.rid is not None:
            await self._bound().engine.abort(self.rid)
        else:
            self._abort_asked = True

    async def _generate(self, messages: Sequence[Message], access: EngineAccess) -> Turn:
        if self._turn_start is None or not self._knows(messages):
            self._render(messages, access.renderer)
            self._turn_start = len(self._record)
            self.turns += 1
            primed, self._primed = self._primed, None
            if primed is not None:
                self._append_runs(*primed)
        result = await self._finish_turn(access, self._turn_start)
        return self._close_turn(result, self._turn_start, access.renderer)

    # --- rendering ----------------------------------------------------------------------------

    def _render(self, messages: Sequence[Message], renderer: ChatRenderer) -> None:
        known = len(self._rendered)
        turn_lost = self._turn_start is not None
        if turn_lost or not self._knows(messages[:known]):
            self._fork()
            known = 0
        if known:
            ids = renderer.after_turn(messages[known:], ended=self._turn_ended)
        else:
            ids = renderer.opening(messages)
        self._record.extend_rendered(ids)
        self._rendered += [_content(m) for m in messages[known:]]

    def _knows(self, messages: Sequence[Message]) -> bool:
        """Whether exactly `messages` are rendered: as they are, which is the rule, or as text."""
        if list(map(_ROLE_AND_CONTENT, messages)) == self._rendered:
            return True
        return [_content(m) for m in messages] == self._rendered

    def _fork(self) -> None:
        self.forks += 1
        self.forked_tokens += self._record.generated
        self._record.truncate(0)
        self._rendered.clear()
        self._turn_start = None

    # --- generating ---------------------------------------------------------------------------

    async def _finish_turn(self, access: EngineAccess, start: int) -> GenerationResult:
        """Generate until the turn ends, token by token where a stop string may span a seam."""
        info = await access.engine.info()
        stop_ids = (*self._sampling.stop_token_ids, *access.renderer.end_of_turn_ids)
        stops = StopStrings(self._sampling.stop)
        while True:
            text = access.renderer.decode(self._record.ids[start:].tolist()) if stops else ""
            ended = self._ended(start, stop_ids, stops.met(text))
            if ended is not None:
                return ended
            budget = self._budget(start, info.context_length)
            if budget < 1:
                return GenerationResult(finish=FinishReason.LENGTH)
            careful = stops.begun(text) and budget > 1
            sampling = replace(
                self._sampling,
                max_new_tokens=1 if careful else budget,
                stop_token_ids=stop_ids,
            )
            result = await self._request(access, info, sampling)
            if not (careful and result.finish is FinishReason.LENGTH):
                return result

    def _ended(
        self, start: int, stop_ids: tuple[int, ...], stop: str | None
    ) -> GenerationResult | None:
        """How the turn ended by what it has, though no engine said so: an abort came with it."""
        done = len(self._record) - start
        last = int(self._record.ids[-1])
        if done and last in stop_ids:
            return GenerationResult(finish=FinishReason.STOP, matched=last)
        if stop is not None:
            return GenerationResult(finish=FinishReason.STOP, matched=stop)
        return None

    def _budget(self, start: int, context_length: int) -> int:
        """Tokens that the turn may still have. Raises ContextFull when it could not even begin."""
        done = len(self._record) - start
        left = self._sampling.max_new_tokens - done
        room = context_length - len(self._record)
        if not done and room <= 0:
            raise ContextFull(f"{len(self._record)} tokens fill the context of {context_length}")
        return min(left, room)

    async def _request(
        self, access: EngineAccess, info: ModelInfo, sampling: SamplingParams
    ) -> GenerationResult:
        if self._abort_asked:
            raise GenerationAborted("aborted before its request was sent")
        rid = access.rids.make(self._episode, attempt=self._attempt, generation=self._requests)
        self._requests += 1
        request = GenerationRequest(
            rid=rid,
            input_ids=self._record.ids,
            sampling=sampling,
            priority=self.priority if info.priorities else None,
        )
        clock = asyncio.get_running_loop().time
        began, length = clock(), len(self._record)
        self.rid = rid
        try:
            return await access.engine.generate(request, self._record)
        finally:
            self.rid = None
            self.received += len(self._record) - length
            self.generation_s += clock() - began

    def _close_turn(self, result: GenerationResult, start: int, renderer: ChatRenderer) -> Turn:
        ids = self._record.ids[start:].tolist()
        self._turn_ended = bool(ids) and ids[-1] in renderer.end_of_turn_ids
        text = renderer.decode(ids[:-1] if self._turn_ended else ids)
        self._rendered.append(("assistant", text))
        self._turn_start = None
        return Turn(text=text, finish=result.finish, tokens=len(ids))

    def _bound(self) -> EngineAccess:
        if self._access is None:
            raise RuntimeError(f"{self._episode} has no engine: call bind() after unpickling")
        return self._access


def _content(message: Message) -> tuple[str, str]:
    return str(message["role"]), str(message["content"])
