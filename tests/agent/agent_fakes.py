"""Parts for driving agents: scripted models of both kinds, environments of both kinds, a driver."""

# ruff: noqa: D102  # the protocols that the fakes follow say what their methods do

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from typing import TYPE_CHECKING, Any

from minisweagent.models.utils.actions_text import format_observation_messages, parse_regex_actions

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess, TurnModel
from agentflow.errors import GenerationAborted
from agentflow.swe.agent import prompts
from agentflow.swe.agent.library import DefaultAgent, FormatError, LocalEnvironment
from agentflow.swe.agent.token_model import TokenModel
from agentflow.swe.sample import SWEData, SWEMeta, SWESample
from agentflow.types import (
    CommandResult,
    EpisodeId,
    FinishReason,
    GenerationResult,
    ModelInfo,
    SamplingParams,
    StepStatus,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agentflow.swe.agent.action_level import ActionLevelMiniSWEAgent
    from agentflow.types import Message

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"


def turn(*commands: str) -> str:
    """Return the text of a turn with these command blocks."""
    blocks = [f"```mswea_bash_command\n{command}\n```" for command in commands]
    return "\n".join(["THOUGHT: next.", *blocks])


# --- a model of the library's kind ----------------------------------------------------------------


class TextModel:
    """A scripted model of the library's kind: text turns, whole messages, or exceptions."""

    def __init__(self, script: Sequence[Any], **config: Any) -> None:
        self.config = {
            "observation_template": prompts.OBSERVATION,
            "format_error_template": prompts.FORMAT_ERROR,
            "action_regex": prompts.ACTION_REGEX,
            "multimodal_regex": "",
            **config,
        }
        self.script = list(script)
        self.agent: DefaultAgent | None = None

    def query(self, messages: list[Message], **kwargs: Any) -> Message:
        """Play the next item; an IndexError ends a script that is too short."""
        item = self.script.pop(0)
        if callable(item):
            item = item(self.agent)
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, dict):
            return dict(item)
        try:
            actions = parse_regex_actions(
                item,
                action_regex=self.config["action_regex"],
                format_error_template=self.config["format_error_template"],
                template_kwargs={"finish_reason": "stop"},
            )
        except FormatError as error:
            error.messages[0]["extra"]["cost"] = 1.0
            raise
        return {"role": "assistant", "content": item, "extra": {"actions": actions, "cost": 1.0}}

    def format_message(self, **fields: Any) -> Message:
        return fields

    def format_observation_messages(
        self, message: Message, outputs: list[dict[str, Any]], template_vars: Any = None
    ) -> list[Message]:
        return format_observation_messages(
            outputs,
            observation_template=self.config["observation_template"],
            multimodal_regex=self.config["multimodal_regex"],
            template_vars=template_vars,
        )

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return self.config

    def serialize(self) -> dict[str, Any]:
        return {"info": {"config": {"model": self.config}}}


# --- environments ---------------------------------------------------------------------------------


class Shell:
    """A ContainerEnv without walls: bash in a folder."""

    def __init__(self, folder: Path, timeout_s: float = 10) -> None:
        self.name = "shell"
        self.folder = folder
        self.timeout_s = timeout_s

    def template_vars(self) -> dict[str, Any]:
        return {"cwd": str(self.folder), "timeout": self.timeout_s}

    async def execute(self, command: str, *, check: bool = False) -> CommandResult:
        return _bash(command, self.folder, self.timeout_s)


def _bash(command: str, folder: Path, timeout_s: float) -> CommandResult:
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        return CommandResult(exit_code=-1, output=output, timed_out=True, duration_s=timeout_s)
    return CommandResult(exit_code=process.returncode, output=output)


class Answers(LocalEnvironment):
    """The library's kind of environment, answering from a script of results or exceptions."""

    def __init__(self, script: Sequence[CommandResult | Exception]) -> None:
        super().__init__(timeout=7)
        self.script = list(script)

    def execute(self, action: dict[str, Any], cwd: str = "", **kwargs: Any) -> dict[str, Any]:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        text = answer.text.replace("\r\n", "\n").replace("\r", "\n")
        output = {"output": text, "returncode": answer.exit_code, "exception_info": ""}
        if answer.timed_out:
            error = subprocess.TimeoutExpired(action.get("command", ""), self.config.timeout)
            output["returncode"] = -1
            output["exception_info"] = f"An error occurred while executing the command: {error}"
            output["extra"] = {"exception_type": "TimeoutExpired", "exception": str(error)}
        self._check_finished(output)
        return output

    def get_template_vars(self, **kwargs: Any) -> dict[str, Any]:
        return {"cwd": "/testbed", "timeout": 7}

    def serialize(self) -> dict[str, Any]:
        return {}


class ContainerAnswers:
    """The same script as a ContainerEnv."""

    name = "answers"

    def __init__(self, script: Sequence[CommandResult | Exception]) -> None:
        self.script = list(script)

    def template_vars(self) -> dict[str, Any]:
        return {"cwd": "/testbed", "timeout": 7}

    async def execute(self, command: str, *, check: bool = False) -> CommandResult:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


# --- an engine ------------------------------------------------------------------------------------

END = 256


class ByteRenderer:
    """A chat template over bytes: `[role]content`, each turn ended by one id."""

    end_of_turn_ids = (END,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        return [i for m in messages for i in self._ids(m)] + list(b"[assistant]")

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        return ([] if ended else [END]) + self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(i for i in ids if i != END).decode("utf-8", errors="replace")

    def _ids(self, message: Message) -> list[int]:
        return [*f"[{message['role']}]{message['content']}".encode(), END]


class ByteEngine:
    """Plays turns byte by byte; request number n ends early after `aborts[n]` tokens."""

    def __init__(
        self,
        turns: Sequence[str],
        aborts: dict[int, int] | None = None,
        context_length: int = 1_000_000,
    ) -> None:
        self.turns = list(turns)
        self.aborts = aborts or {}
        self.context_length = context_length
        self.requests = 0
        self._left: list[int] = []

    async def info(self) -> ModelInfo:
        return ModelInfo(name="bytes", vocab_size=257, context_length=self.context_length)

    async def generate(self, request: Any, sink: Any) -> GenerationResult:
        if not self._left:
            self._left = [*self.turns.pop(0).encode(), END]
        room = self.aborts.get(self.requests, request.sampling.max_new_tokens)
        self.requests += 1
        now, self._left = self._left[:room], self._left[room:]
        if now:
            sink.append(now, [-0.5] * len(now), 3)
        if self.requests - 1 in self.aborts:
            raise GenerationAborted("asked to")
        if self._left:
            self._left = []
            return GenerationResult(finish=FinishReason.LENGTH)
        return GenerationResult(finish=FinishReason.STOP, matched=END)


def new_sample(
    engine: ByteEngine, *, max_new_tokens: int = 10_000, problem: str = "mend it"
) -> SWESample:
    """Return the sample of one episode, its model bound to `engine`."""
    sample = SWESample(
        episode=EpisodeId(uid="u"),
        m=SWEMeta(data=SWEData(task={"instance_id": "i/1", "problem_statement": problem})),
    )
    sample.model = TurnModel(
        episode=sample.episode,
        record=sample.record,
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
        access=access_to(engine),
    )
    return sample


def access_to(engine: ByteEngine) -> EngineAccess:
    """Return `engine` with its renderer."""
    return EngineAccess(engine=engine, renderer=ByteRenderer(), rids=RidFactory("0" * 12))


def token_model(engine: ByteEngine, **kwargs: Any) -> TokenModel:
    """Return a TokenModel on `engine`, with an episode of its own."""
    turns = new_sample(engine, **kwargs).model
    assert turns is not None
    return TokenModel(turns)


# --- driving --------------------------------------------------------------------------------------


async def play(agent: ActionLevelMiniSWEAgent, env: Any) -> None:
    """Drive an agent's half-steps to the end."""
    status, action = await agent.generation_step()
    while status is not StepStatus.TERMINATED:
        if status is StepStatus.NEEDS_ENV_STEP:
            assert action is not None
            status, action = await agent.env_step(env, action)
        else:
            status, action = await agent.generation_step()


def comparable(messages: Sequence[Message]) -> list[Message]:
    """Return messages without what differs between two equal runs."""
    plain = []
    for message in messages:
        kept = dict(message)
        if "extra" in message:
            drop = {"timestamp", "traceback"}
            kept["extra"] = {k: v for k, v in message["extra"].items() if k not in drop}
        plain.append(kept)
    return plain


def run_library(agent: DefaultAgent, task: str) -> str | None:
    """Run the library's agent; the name of the exception that ended it, if one did."""
    raised: list[str] = []
    with contextlib.ExitStack() as stack:
        stack.push(lambda kind, *_: bool(raised.append(kind.__name__)) or True if kind else False)
        agent.run(task)
    return raised[0] if raised else None
