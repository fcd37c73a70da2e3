"""PolicyScript: a `Policy`'s answers as the token script of a ScriptedEngine.

Stateless: the answer is a function of the conversation, so that an aborted turn goes on where it
stood, on this engine or another, and two runs give the same ids. The log-probabilities are made up:
a function of the ids before a token and of the token itself, in (-2, 0], exact in float32.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, Protocol

import numpy as np

from agentflow.engine.conversation import read_turn
from agentflow.engine.scripted import Continuation
from agentflow.errors import ConfigError, EngineRejected

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.conversation import Conversation
    from agentflow.engine.template_renderer import TemplateRenderer
    from agentflow.engine.tokenizer import FastTokenizer
    from agentflow.types import GenerationRequest

_WINDOW: Final = 8
"""Ids before a token that its made-up log-probability depends on."""


class Policy(Protocol):
    """What the assistant says: a pure function of the conversation."""

    @property
    def name(self) -> str:
        """For reports."""
        ...

    def answer(self, conversation: Conversation) -> str:
        """Return the whole answer. Raises EngineRejected where the policy has none."""
        ...


class PolicyScript:
    """Plays `policy` in the chat format of `renderer`."""

    def __init__(
        self, policy: Policy, *, renderer: TemplateRenderer, tokenizer: FastTokenizer
    ) -> None:
        """Raises ConfigError when the template puts nothing recognisable before an answer."""
        self._policy = policy
        self._tokenizer = tokenizer
        self._prompt_ids = renderer.prompt_ids
        self._end_ids = renderer.end_of_turn_ids
        if not {*self._prompt_ids} & {*tokenizer.special_tokens.values()}:
            raise ConfigError(
                "the scripted engine finds turns by the special token before an answer, and this "
                "model's chat template has none there; use the bundled tokenizer"
            )

    @property
    def name(self) -> str:
        """Return `scripted:` and the policy's name."""
        return f"scripted:{self._policy.name}"

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Return the ids that end the assistant's turn."""
        return self._end_ids

    def continuation(self, request: GenerationRequest) -> Continuation:
        """Return what is left of the policy's answer, and the id that ends the turn."""
        turn = read_turn(
            request.input_ids,
            rid=request.rid,
            prompt_ids=self._prompt_ids,
            tokenizer=self._tokenizer,
        )
        if turn is None:
            raise EngineRejected(
                f"request {request.rid}: no turn of the assistant is open in its "
                f"{len(request.input_ids)} ids"
            )
        answer = self._tokenizer.encode_plain(self._policy.answer(turn.conversation))
        answer.append(self._end_ids[0])
        done = len(turn.partial)
        if tuple(answer[:done]) == turn.partial:
            answer = answer[done:] or answer[-1:]
        context = request.input_ids[-_WINDOW:].tolist()
        return Continuation(ids=answer, logprobs=made_up_logprobs(context, answer))


def made_up_logprobs(context: Sequence[int], ids: Sequence[int]) -> list[float]:
    """Deterministic log-probabilities of `ids` behind `context`, in nats."""
    padded = [-1] * _WINDOW + list(context)
    history = np.array(padded[-_WINDOW:] + list(ids), np.int32).tobytes()
    size = 4 * (_WINDOW + 1)
    checks = (zlib.crc32(history[4 * i : 4 * i + size]) & 0xFFFF for i in range(len(ids)))
    return [-check / 0x8000 for check in checks]
