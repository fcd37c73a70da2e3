r"""TemplateRenderer: messages to ids by the model's own chat template, only ever appending.

What a message adds behind an assistant's turn is derived from the template: a probe conversation is
rendered with and without it, and the difference, cut at the answer, is kept as a Skeleton. After
that no history is rendered again: a turn costs one encoding of what is new.

    opening:     <|im_start|>user\n  SLOT  <|im_end|>\n<|im_start|>assistant\n
    generated:   ids of the engine, the end-of-turn token included
    after_turn:  \n<|im_start|>user\n  SLOT  <|im_end|>\n<|im_start|>assistant\n

An answer that was cut by its length gets the end-of-turn token here. Contents are encoded without
special tokens (see `tokenizer`). A template for which appending is not what it does itself is
refused at construction (see `template_probes`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentflow.engine import skeleton, template_probes
from agentflow.engine.chat_template import DEFAULT_DATE, ChatTemplate, TemplateRefused
from agentflow.engine.tokenizer import Piece
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping, Sequence

    from agentflow.engine.model_folder import ModelFolder
    from agentflow.engine.skeleton import Skeleton
    from agentflow.types import Message

_MAX_SKELETONS: Final = 256
"""Distinct sequences of roles are few; a conversation that forks often must not fill memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Closing:
    """How the template ends the assistant's turn: `blank` then the special token `token`."""

    blank: str
    token: str
    id: int


class _Render(Protocol):
    def __call__(self, messages: Sequence[Message], *, prompt: bool) -> str: ...


class TemplateRenderer:
    """A `ChatRenderer` by the template of a model's folder."""

    def __init__(
        self,
        folder: ModelFolder,
        *,
        variables: Mapping[str, Any] | None = None,
        now: dt.datetime = DEFAULT_DATE,
    ) -> None:
        """`variables` are more that the template reads (`enable_thinking`, …).

        Raises ConfigError when the template cannot be appended to, naming the probe that showed it.
        """
        self._tokenizer = folder.tokenizer
        self._template = ChatTemplate(
            folder.chat_template,
            name=folder.name,
            variables={**folder.special_tokens, **(variables or {})},
            now=now,
        )
        self._skeletons: dict[tuple[str, ...], Skeleton] = {}
        self._folds_system = self._refuses_system()
        tail = template_probes.check_text(self._template, system=not self._folds_system)
        self._closing = self._find_closing(tail)
        self._end_of_turn_ids = tuple(dict.fromkeys((self._closing.id, *folder.end_ids)))
        self._exact_prompt = template_probes.check_tokens(self, self._template, self._tokenizer)

    @property
    def end_of_turn_ids(self) -> tuple[int, ...]:
        """Ids by which the assistant ends its turn; the template's own is the first."""
        return self._end_of_turn_ids

    @property
    def prompt_ids(self) -> list[int]:
        """Ids that stand in front of every answer, whatever was asked."""
        one, two = (self.opening([_message(text)]) for text in ("one", "2"))
        length = 0
        while length < min(len(one), len(two)) and one[-1 - length] == two[-1 - length]:
            length += 1
        return one[len(one) - length :]

    @property
    def folds_system(self) -> bool:
        """True if the template refuses system messages: one then opens the first user message."""
        return self._folds_system

    @property
    def exact_prompt(self) -> bool:
        """True if a prompt's ids begin the ids of the whole conversation, whatever the answer.

        False for tokenizers that would merge the prompt's end with an answer's first letters; the
        record then differs there from what encoding the finished text at once would give.
        """
        return self._exact_prompt

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation with the prompt for the assistant's answer."""
        messages = _folded(messages) if self._folds_system else messages
        roles = tuple(str(m["role"]) for m in messages)
        return self._tokenizer.encode_pieces(self._opening(roles).pieces(_contents(messages)))

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Ids that `messages` add behind an assistant's turn; `ended`: it sampled its end."""
        roles = tuple(str(m["role"]) for m in messages)
        pieces = self._after(roles).pieces(_contents(messages))
        closing = self._closing
        # Encoded behind the closing token, so that tokenizers that treat the start of a text
        # specially see what stands there.
        ids = self._tokenizer.encode_pieces([Piece(closing.token, trusted=True), *pieces])
        if ended:
            return ids[1:]
        return self._tokenizer.encode(closing.blank) + ids if closing.blank else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, special tokens left out."""
        return self._tokenizer.decode(ids)

    # --- deriving -----------------------------------------------------------------------------

    def _opening(self, roles: tuple[str, ...]) -> Skeleton:
        return self._cached(("opening", *roles), self._template.render, roles)

    def _after(self, roles: tuple[str, ...]) -> Skeleton:
        return self._cached(("after", *roles), self._render_after, roles)

    def _cached(self, key: tuple[str, ...], render: _Render, roles: tuple[str, ...]) -> Skeleton:
        found = self._skeletons.get(key)
        if found is None:
            if len(self._skeletons) >= _MAX_SKELETONS:
                self._skeletons.clear()
            found = skeleton.parse(render(skeleton.marked(roles), prompt=True), roles)
            self._skeletons[key] = found
        return found

    def _render_after(self, messages: Sequence[Message], *, prompt: bool) -> str:
        tail = template_probes.tail_of(self._template, messages, prompt=prompt)
        return tail.removeprefix(self._closing.blank + self._closing.token)

    def _find_closing(self, tail: str) -> _Closing:
        rest = tail.lstrip()
        tokens = self._tokenizer.special_tokens
        for token in sorted(tokens, key=len, reverse=True):
            if rest.startswith(token):
                blank = tail[: len(tail) - len(rest)]
                return _Closing(blank=blank, token=token, id=tokens[token])
        raise ConfigError(
            f"the chat template of {self._template.name} ends the assistant's turn with "
            f"{tail[:40]!r}, which does not begin with a special token of the tokenizer "
            f"({', '.join(sorted(tokens)[:8])}): the model could not say that it is done"
        )

    def _refuses_system(self) -> bool:
        try:
            self._template.render(
                [{"role": "system", "content": "s"}, _message("probe")], prompt=True
            )
        except TemplateRefused:
            return True
        return False


def _message(content: str) -> Message:
    return {"role": "user", "content": content}


def _contents(messages: Sequence[Message]) -> list[str]:
    return [str(m["content"]) for m in messages]


def _folded(messages: Sequence[Message]) -> Sequence[Message]:
    """Put a leading system message in front of the user's, as Gemma 3's template does itself."""
    if [m["role"] for m in messages[:2]] != ["system", "user"]:
        return messages
    system, user = messages[:2]
    return [{"role": "user", "content": f"{system['content']}\n\n{user['content']}"}, *messages[2:]]
