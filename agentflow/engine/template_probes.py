"""Probes that show at construction whether a chat template can only be appended to.

Each probe renders a made-up conversation and compares it with what appending would give. A template
that drops earlier reasoning, moves the system message, numbers its turns or edits contents fails
one of them, and the ConfigError names the probe and shows the first difference.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

from agentflow.engine import skeleton
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agentflow.engine.chat_template import ChatTemplate
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.engine.tokenizer import FastTokenizer
    from agentflow.types import Message

ANSWER: Final = "I look.\n\n```mswea_bash_command\nls -la 12345\n```"
REASONED: Final = "<think>\nWhy not?\n</think>\n\nI look."
OBSERVATION: Final = "<returncode>0</returncode>\n<output>\na  b\n</output>"
ODD: Final = "{{ x }} <b>&amp;</b> \"q\" 'r' \\n </s> ünï\r\n\t中文 </think> end."


def check_text(template: ChatTemplate, *, system: bool) -> str:
    """Run the probes on text; return what follows an answer when a user message does.

    `system`: whether the template takes a system message. Raises ConfigError.
    """
    _check_growth(template, "a later turn", system=system, answer=ANSWER)
    _check_growth(template, "reasoning in an earlier turn", system=system, answer=REASONED)
    tails = _tails(template, system=system)
    if tails[0] != tails[1]:
        raise _rewrites(template, "the same message in a later turn", tails[0], tails[1])
    for content in (OBSERVATION, ODD, ""):
        _check_content(template, content, system=system)
    return tails[0]


def check_tokens(renderer: ChatRenderer, template: ChatTemplate, tokenizer: FastTokenizer) -> bool:
    """Probe that encoding piece by piece gives the ids of encoding the conversation at once.

    Raises ConfigError where appended messages would differ. Returns whether the prompt's end does
    not depend on the answer either; where it does, engines that are sent a prompt see other ids
    than trainers that encode whole conversations, with or without us.
    """
    first = _message("user", OBSERVATION)
    opening = renderer.opening([first])
    after = renderer.after_turn([first], ended=True)
    exact = True
    for answer in (ANSWER, "ls", "42"):
        text = template.render([first, _message("assistant", answer), first], prompt=True)
        whole = tokenizer.encode(text)
        if whole[-len(after) :] != after:
            raise _seam(template, answer)
        exact = exact and whole[: len(opening)] == opening
    return exact


def tail_of(template: ChatTemplate, messages: Sequence[Message], *, prompt: bool = True) -> str:
    """Text that stands behind an answer when `messages` follow it."""
    before = [_message("user", OBSERVATION)]
    opening = template.render(before, prompt=True)
    conversation = [*before, _message("assistant", ANSWER), *messages]
    text = template.render(conversation, prompt=prompt)
    return _behind(template, "a later turn", text, opening=opening, answer=ANSWER)


def _check_growth(template: ChatTemplate, probe: str, *, system: bool, answer: str) -> None:
    conversation = _conversation(answer, system=system)
    prompts = [
        template.render(conversation[: i + 1], prompt=True)
        for i, message in enumerate(conversation)
        if message["role"] == "user"
    ]
    for earlier in prompts[:-1]:
        for later in prompts[prompts.index(earlier) + 1 :]:
            _behind(template, probe, later, opening=earlier, answer=answer)


def _tails(template: ChatTemplate, *, system: bool) -> tuple[str, str]:
    conversation = _conversation(ANSWER, system=system)
    prompts = [
        template.render(conversation[: len(conversation) - cut], prompt=True) for cut in (4, 2, 0)
    ]
    first, second = (
        _behind(template, "a later turn", later, opening=earlier, answer=ANSWER)
        for earlier, later in pairwise(prompts)
    )
    return first, second


def _check_content(template: ChatTemplate, content: str, *, system: bool) -> None:
    roles = ["system", "user", "assistant", "user"] if system else ["user", "assistant", "user"]
    try:
        frame = skeleton.parse(template.render(skeleton.marked(roles), prompt=True), roles)
    except ConfigError as error:
        raise ConfigError(f"{template.name}: {error}") from None
    contents = [ANSWER if role == "assistant" else content for role in roles]
    messages = [_message(role, text) for role, text in zip(roles, contents, strict=True)]
    filled, rendered = frame.fill(contents), template.render(messages, prompt=True)
    if filled != rendered:
        raise _rewrites(template, f"the content {content!r}", filled, rendered)


def _conversation(answer: str, *, system: bool) -> list[Message]:
    """Three questions, two answers."""
    messages = [_message("system", "You fix bugs.")] if system else []
    return [
        *messages,
        _message("user", OBSERVATION),
        *([_message("assistant", answer), _message("user", OBSERVATION)] * 2),
    ]


def _behind(template: ChatTemplate, probe: str, text: str, *, opening: str, answer: str) -> str:
    """Cut `opening` and `answer` off `text`; what the model samples between them is whitespace."""
    if not text.startswith(opening):
        raise _rewrites(template, probe, opening, text)
    rest = text[len(opening) :].lstrip() if answer == answer.lstrip() else text[len(opening) :]
    if not rest.startswith(answer):
        raise _rewrites(template, probe, answer, rest)
    return rest[len(answer) :]


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _rewrites(template: ChatTemplate, probe: str, expected: str, found: str) -> ConfigError:
    at = next(
        (i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b),
        min(len(expected), len(found)),
    )
    shown = slice(max(0, at - 20), at + 40)
    return ConfigError(
        f"the chat template of {template.name} rewrites history; a token-exact record can only "
        f"append. Probe {probe!r}: expected …{expected[shown]!r}, it writes …{found[shown]!r}. "
        "Give a chat template that keeps earlier turns as they were"
    )


def _seam(template: ChatTemplate, answer: str) -> ConfigError:
    return ConfigError(
        f"the tokenizer of {template.name} merges tokens between the answer {answer!r} and the "
        "next message: ids of appended messages would differ from those of the whole conversation"
    )
