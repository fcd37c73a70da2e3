"""An interrupted or pickled agent goes on as if nothing had happened."""

from __future__ import annotations

import asyncio
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from agent_fakes import (
    SUBMIT,
    ByteEngine,
    Shell,
    TextModel,
    access_to,
    new_sample,
    play,
    turn,
)

from agentflow.errors import EngineUnreachable, EnvDied, GenerationAborted
from agentflow.swe.agent.action_level import (
    ActionLevelMiniSWEAgent,
    ActionLevelMiniSWEAgentBuilder,
)
from agentflow.swe.agent.environments import DetachedEnv
from agentflow.types import CommandResult, StepStatus, SWERolloutResult

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.swe.sample import SWESample

TURNS = ["no block", turn("echo hi"), "bad", turn("echo ho"), turn(f"{SUBMIT}; echo x")]
CONFIG = {"name": "action_level_minisweagent", "step_limit": 5, "cost_per_call": 0.5}


def _episode(engine: ByteEngine) -> tuple[ActionLevelMiniSWEAgent, SWESample]:
    sample = new_sample(engine)
    agent = ActionLevelMiniSWEAgentBuilder(CONFIG).build(sample)
    assert isinstance(agent, ActionLevelMiniSWEAgent)
    sample.m.agent = agent
    return agent, sample


def _facts(agent: ActionLevelMiniSWEAgent, sample: SWESample) -> dict[str, Any]:
    return {
        "messages": agent.messages,
        "ids": sample.record.ids.tolist(),
        "mask": sample.record.response_mask.tolist(),
        "calls": agent.n_calls,
        "cost": agent.cost,
        "format_errors": agent.n_consecutive_format_errors,
        "result": agent.result,
        "ending": agent.ending,
    }


async def _undisturbed(folder: Path) -> dict[str, Any]:
    agent, sample = _episode(ByteEngine(TURNS))
    agent.attach(Shell(folder))
    await play(agent, Shell(folder))
    return _facts(agent, sample)


@pytest.mark.parametrize("tokens", [0, 1, 7, 19])
async def test_aborted_turns_are_gone_on_with(tmp_path: Path, tokens: int) -> None:
    """Every turn aborted once, early or late: the same messages, tokens, calls and cost."""
    expected = await _undisturbed(tmp_path)
    limits = {2 * n: min(tokens, len(text)) for n, text in enumerate(TURNS)}
    agent, sample = _episode(ByteEngine(TURNS, aborts=limits))
    aborts = 0
    while agent.result is None:
        try:
            await agent.run_episode(Shell(tmp_path))
        except GenerationAborted:
            aborts += 1

    assert aborts == len(TURNS)
    assert _facts(agent, sample) == expected
    assert agent.result is SWERolloutResult.SUBMIT


async def test_it_pickles_at_every_half_step(tmp_path: Path) -> None:
    """Agent and sample go through pickle between all half-steps and come out the same."""
    expected = await _undisturbed(tmp_path)
    engine = ByteEngine(TURNS, aborts={0: 3, 4: 5})
    agent, sample = _episode(engine)
    agent.attach(Shell(tmp_path))
    status, action = StepStatus.NEEDS_GENERATION, None
    while status is not StepStatus.TERMINATED:
        agent, sample, status, action = pickle.loads(pickle.dumps((agent, sample, status, action)))
        assert agent.messages is sample.messages
        assert sample.m.agent is agent
        assert isinstance(agent.env, DetachedEnv)
        assert sample.model is not None
        sample.model.bind(access_to(engine), attempt=0)
        try:
            if status is StepStatus.NEEDS_ENV_STEP:
                assert action is not None
                status, action = await agent.env_step(Shell(tmp_path), action)
            else:
                status, action = await agent.generation_step()
        except GenerationAborted:
            assert status is StepStatus.NEEDS_GENERATION

    assert _facts(agent, sample) == expected


@pytest.mark.parametrize("error", [EngineUnreachable("x"), GenerationAborted("x")])
async def test_engine_errors_pass_and_leave_no_trace(tmp_path: Path, error: Exception) -> None:
    """The error itself comes out, no exit message is added, and the step counts once."""
    model = TextModel([error, error, turn("echo hi"), turn(SUBMIT)])
    config = {"system_template": "", "instance_template": "", "step_limit": 2, "cost_limit": 0}
    agent = ActionLevelMiniSWEAgent(model, None, **config)
    for _ in range(2):
        with pytest.raises(type(error)):
            await agent.generation_step()
        assert [m["role"] for m in agent.messages] == ["system", "user"]

    await play(agent, Shell(tmp_path))

    assert agent.result is SWERolloutResult.SUBMIT
    assert agent.n_calls == 2


async def test_a_cancelled_generation_can_be_repeated() -> None:
    """Cancellation passes untouched, and the call that it cut is not counted twice."""
    reached = asyncio.Event()

    class Slow(TextModel):
        async def aquery(self, messages: Any) -> Any:
            if not reached.is_set():
                reached.set()
                await asyncio.Event().wait()
            return self.query(messages)

    config = {"system_template": "", "instance_template": "", "step_limit": 1}
    agent = ActionLevelMiniSWEAgent(Slow([turn("ls")]), None, **config)
    async with asyncio.TaskGroup() as group:
        step = group.create_task(agent.generation_step())
        await reached.wait()
        step.cancel()

    assert await agent.generation_step() == (StepStatus.NEEDS_ENV_STEP, "ls")
    assert agent.n_calls == 1


class _Dying:
    """An environment whose second command finds it dead."""

    name = "dying"

    def __init__(self) -> None:
        self.commands: list[str] = []

    async def execute(self, command: str, *, check: bool = False) -> CommandResult:
        self.commands.append(command)
        if len(self.commands) == 2:
            raise EnvDied("gone")
        return CommandResult(exit_code=0, output=command.encode())


async def test_a_command_cut_off_by_the_environment_can_be_repeated() -> None:
    """Of several actions those that ran do not run again; the observations are complete."""
    actions = [{"command": c} for c in "abc"]
    message = {"role": "assistant", "content": "", "extra": {"actions": actions}}
    config = {"system_template": "", "instance_template": ""}
    env = _Dying()
    agent = ActionLevelMiniSWEAgent(TextModel([message]), env, **config)
    status, action = await agent.generation_step()
    assert action == "a\nb\nc"
    with pytest.raises(EnvDied):
        await agent.env_step(env, action)

    status, _ = await agent.env_step(env, action)

    assert status is StepStatus.NEEDS_GENERATION
    assert env.commands == ["a", "b", "b", "c"]
    assert [m["extra"]["raw_output"] for m in agent.messages[-3:]] == ["a", "b", "c"]


async def test_half_steps_out_of_order_are_refused(tmp_path: Path) -> None:
    """A generation while a command is due, and a command when none is, change nothing."""
    config = {"system_template": "", "instance_template": ""}
    agent = ActionLevelMiniSWEAgent(TextModel([turn("ls")]), None, **config)
    with pytest.raises(RuntimeError, match="no command is due"):
        await agent.env_step(Shell(tmp_path), "ls")
    await agent.generation_step()
    with pytest.raises(RuntimeError, match="a command is due"):
        await agent.generation_step()

    assert agent.n_calls == 1
    assert (await agent.env_step(Shell(tmp_path), "echo other"))[0] is StepStatus.NEEDS_GENERATION
    assert agent.messages[-1]["extra"]["raw_output"] == "other\n"


async def test_an_ended_agent_stays_ended(tmp_path: Path) -> None:
    """A further generation step tells TERMINATED and asks no model."""
    config = {"system_template": "", "instance_template": ""}
    agent = ActionLevelMiniSWEAgent(TextModel([turn(SUBMIT)]), None, **config)
    await play(agent, Shell(tmp_path))

    assert await agent.generation_step() == (StepStatus.TERMINATED, None)
    assert agent.n_calls == 1
