"""`agentflow demo-llm`: what a person is told of what the model did."""

from __future__ import annotations

from typing import TYPE_CHECKING

from executors.cli.demo_llm import Acts, told

if TYPE_CHECKING:
    from agentflow.types import Message


def assistant(text: str, *commands: str) -> Message:
    """Return a turn of the model."""
    actions = [{"command": command} for command in commands]
    return {"role": "assistant", "content": text, "extra": {"actions": actions}}


def observation(returncode: int) -> Message:
    """Return what a command said."""
    return {"role": "user", "content": "…", "extra": {"returncode": returncode}}


HISTORY: list[Message] = [
    {"role": "system", "content": "s", "extra": {}},
    {"role": "user", "content": "a past issue", "extra": {"example": True}},
    {"role": "assistant", "content": "a past command", "extra": {"example": True}},
    {"role": "user", "content": "the issue", "extra": {}},
    assistant("first", "ls\npwd"),
    observation(0),
    assistant("I just\ntalk"),
    {"role": "user", "content": "not run", "extra": {"interrupt_type": "FormatError"}},
    assistant("third", "cat nothing"),
    observation(1),
    assistant("last", "echo DONE"),
    {"role": "exit", "content": "", "extra": {"exit_status": "Submitted", "submission": ""}},
]


def test_turns_are_counted_by_what_became_of_them() -> None:
    """Run, malformed, with which return code; worked examples are nobody's turns."""
    assert Acts.of(HISTORY) == Acts(turns=4, executed=3, succeeded=2, malformed=1)
    assert Acts.of(HISTORY) + Acts.of(HISTORY[:6]) == Acts(
        turns=5, executed=4, succeeded=3, malformed=1
    )


def test_each_turn_is_told_in_a_line() -> None:
    """The command with its return code, or what was said instead of one."""
    assert list(told(HISTORY)) == [
        "$ ls\\npwd  -> 0",
        "? I just\\ntalk",
        "$ cat nothing  -> 1",
        "$ echo DONE  -> Submitted",
    ]


def test_a_turn_that_never_ran_is_not_executed() -> None:
    """An episode that was cut off behind a command tells so."""
    assert list(told(HISTORY[:5])) == ["$ ls\\npwd  -> not run"]
    assert Acts.of(HISTORY[:5]).executed == 0
