"""Policies that a ScriptedEngine plays: the oracle, one that changes nothing, a noisy one.

All are pure functions of the conversation: what a policy says follows from the prompt, the turn's
number and, for chance, the episode's key. They speak mini-swe-agent's text protocol, one
`mswea_bash_command` block a turn, and submit with its marker.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, assert_never

from agentflow.errors import ConfigError, EngineRejected

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.engine.conversation import Conversation

SUBMIT: Final = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""The command by which an agent submits."""

_MAX_COMMAND: Final = 2000
"""Characters of patch in one command; about 1300 tokens, inside a turn's usual budget of 2048."""

_PATCH_FILE: Final = ".agentflow-oracle.patch"
_HERE_DOC_END: Final = "AGENTFLOW_PATCH_END"

_APPLY: Final = (
    f'GIT_CEILING_DIRECTORIES="$(dirname "$PWD")" git apply --whitespace=nowarn {_PATCH_FILE}'
    f" && rm {_PATCH_FILE}"
)
"""The ceiling keeps git from taking a repository further up and skipping the paths under it."""


def say(thought: str, command: str) -> str:
    """Write a well-formed turn."""
    return f"THOUGHT: {thought}\n\n```mswea_bash_command\n{command}\n```"


# --- noop -------------------------------------------------------------------------------------

_LOOKS: Final = (
    say("I look at what is here.", "ls -A"),
    say("I look at the state of the repository.", "git status --short | head -20"),
)


class NoopPolicy:
    """Looks around a little and submits without a change: what scores 0 on every task."""

    name = "noop"

    def answer(self, conversation: Conversation) -> str:
        """Look, look, submit."""
        if conversation.turn < len(_LOOKS):
            return _LOOKS[conversation.turn]
        return say("Nothing to change.", SUBMIT)


# --- oracle -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class _Solution:
    """One task's answer, as the turns that give it."""

    instance_id: str
    statement: str
    turns: tuple[str, ...]


class Playbook:
    """What is to be said in each of some tasks, found by the task's statement in the prompt."""

    def __init__(self, turns: Mapping[str, Sequence[str]]) -> None:
        """`turns` by problem statement."""
        plays = ((statement.strip(), list(play)) for statement, play in turns.items())
        # The longest statement first: one may contain another.
        self._plays = sorted(plays, key=lambda play: (-len(play[0]), play[0]))

    def turns(self, conversation: Conversation) -> Sequence[str]:
        """Return the turns of the conversation's task. Raises EngineRejected for an unknown one."""
        for statement, turns in self._plays:
            if statement in conversation.prompt:
                return turns
        raise EngineRejected(
            f"the policy knows none of its {len(self._plays)} tasks in this prompt: no "
            "problem_statement stands in it word for word; play it with the tasks that are run"
        )


class OraclePolicy:
    """Knows the tasks' own patches: finds its task in the prompt, applies the patch, submits."""

    name = "oracle"

    def __init__(self, tasks: Sequence[Mapping[str, Any]]) -> None:
        """`tasks` are SWE-bench rows. Raises ConfigError for one that names no patch."""
        solutions: dict[str, _Solution] = {}
        for task in tasks:
            solution = _solution(task)
            other = solutions.setdefault(solution.statement, solution)
            if other.turns != solution.turns:
                raise ConfigError(
                    f"tasks {other.instance_id!r} and {solution.instance_id!r} have the same "
                    "problem_statement but different patches: the oracle cannot tell them apart"
                )
        self._playbook = Playbook({s.statement: s.turns for s in solutions.values()})

    def answer(self, conversation: Conversation) -> str:
        """Return the turn-th step of the task's solution."""
        return self.step(conversation, conversation.turn)

    def step(self, conversation: Conversation, number: int) -> str:
        """Return a step of the solution; behind the last one it submits again."""
        turns = self._playbook.turns(conversation)
        return turns[min(number, len(turns) - 1)]


def _solution(task: Mapping[str, Any]) -> _Solution:
    name = str(task.get("instance_id", "?"))
    for field in ("problem_statement", "patch"):
        value = task.get(field)
        if not isinstance(value, str) or not value.strip():
            raise ConfigError(
                f"task {name!r}: {field} is {value!r}; the oracle needs it as a non-empty text"
            )
    return _Solution(
        instance_id=name,
        statement=str(task["problem_statement"]).strip(),
        turns=(*_apply_turns(str(task["patch"])), say("The bug is fixed.", SUBMIT)),
    )


def _apply_turns(patch: str) -> list[str]:
    """Write the patch into a file, in as many turns as it needs, and apply it in the last."""
    patch = patch if patch.endswith("\n") else patch + "\n"
    parts = _here_doc_parts(patch) or _base64_parts(patch)
    commands = [
        f"{writer} {'>' if number == 0 else '>>'} {_PATCH_FILE} <<'{_HERE_DOC_END}'\n"
        f"{text}{_HERE_DOC_END}"
        for number, (writer, text) in enumerate(parts)
    ]
    commands[-1] += f"\n{_APPLY}"
    return [say("I know the fix.", command) for command in commands]


def _here_doc_parts(patch: str) -> list[tuple[str, str]] | None:
    """Cut at line ends; None when the text would not survive a fence, a here-doc or a tokenizer."""
    plain = patch.isascii() and all(c.isprintable() or c in "\n\t" for c in patch)
    if not plain or "```" in patch or _HERE_DOC_END in patch:
        return None
    parts = [""]
    for line in patch.splitlines(keepends=True):
        if len(line) > _MAX_COMMAND:
            return None
        if len(parts[-1]) + len(line) > _MAX_COMMAND:
            parts.append("")
        parts[-1] += line
    return [("cat", part) for part in parts]


def _base64_parts(patch: str) -> list[tuple[str, str]]:
    data = patch.encode("utf-8", errors="surrogateescape")
    step = _MAX_COMMAND * 3 // 4
    return [
        ("base64 -d", base64.encodebytes(data[start : start + step]).decode("ascii"))
        for start in range(0, len(data), step)
    ]


# --- noisy ------------------------------------------------------------------------------------


class _Move(StrEnum):
    """What a noisy turn is."""

    STEP = "step"
    MALFORMED = "malformed"
    USELESS = "useless"
    FAILING = "failing"
    GIVE_UP = "give_up"


_MOVES: Final = (
    (_Move.STEP, 55),
    (_Move.MALFORMED, 12),
    (_Move.USELESS, 18),
    (_Move.FAILING, 12),
    (_Move.GIVE_UP, 3),
)
"""Moves and how often each is made, in per cent."""

_MAX_NOISE: Final = 8
"""Turns that may be noise; after as many an episode only makes progress, so that it ends."""

_MALFORMED: Final = (
    "I will think about it a little longer.",
    "```bash\nls\n```",
    "```mswea_bash_command\nls\n```\n\n```mswea_bash_command\npwd\n```",
    "```mswea_bash_command\nls",
)
_USELESS: Final = ("pwd", "ls -A", "uname -a", "git log --oneline | head -5", "find . | head -50")
_FAILING: Final = ("cat no/such/file", "false", "python3 -c 'raise SystemExit(3)'", "nosuchcommand")


class NoisyPolicy:
    """The oracle on a bad day: malformed turns, useless and failing commands, giving up.

    Chance is a hash of the seed, the episode and the turn: replicas of one prompt differ, and a
    second run with the same seed does not.
    """

    def __init__(self, seed: int, tasks: Sequence[Mapping[str, Any]]) -> None:
        self._seed = seed
        self._oracle = OraclePolicy(tasks)
        self.name = f"noisy:{seed}"

    def answer(self, conversation: Conversation) -> str:
        """Make this turn's move."""
        steps = noise = 0
        for turn in range(conversation.turn):
            is_step = self._move(conversation, turn, noise=noise) is _Move.STEP
            steps, noise = steps + is_step, noise + (not is_step)
        move = self._move(conversation, conversation.turn, noise=noise)
        match move:
            case _Move.STEP:
                return self._oracle.step(conversation, steps)
            case _Move.MALFORMED:
                return self._pick(conversation, _MALFORMED)
            case _Move.USELESS:
                return say("Let me look around.", self._pick(conversation, _USELESS))
            case _Move.FAILING:
                return say("This may help.", self._pick(conversation, _FAILING))
            case _Move.GIVE_UP:
                return say("I give up.", SUBMIT)
        assert_never(move)

    def _move(self, conversation: Conversation, turn: int, *, noise: int) -> _Move:
        if noise >= _MAX_NOISE:
            return _Move.STEP
        drawn = self._draw(conversation, f"move/{turn}") % sum(weight for _, weight in _MOVES)
        for move, weight in _MOVES:
            if drawn < weight:
                return move
            drawn -= weight
        raise AssertionError(drawn)

    def _pick(self, conversation: Conversation, options: Sequence[str]) -> str:
        return options[self._draw(conversation, f"pick/{conversation.turn}") % len(options)]

    def _draw(self, conversation: Conversation, what: str) -> int:
        who = conversation.episode or conversation.prompt
        text = f"{self._seed}/{who}/{what}"
        return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())
