"""Plug-ins as a user would write them, small enough to make every path of a flow happen."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.types import (
    CommandResult,
    EpisodeId,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    ModelInfo,
    RolloutSample,
    StepStatus,
    SWERolloutResult,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.protocols import ContainerEnv, TokenSink
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, Message

END = 1


class CharRenderer:
    """One id a character; a message ends with END."""

    end_of_turn_ids = (END,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Render the whole conversation."""
        return [i for m in messages for i in (*map(ord, str(m["content"])), END)]

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Close a cut turn, then render what is new."""
        return ([] if ended else [END]) + self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return "".join(map(chr, ids))


@dataclass
class Engine:
    """Answers every request with the same ids; `on_request` may raise or wait instead."""

    answer: str = "ok"
    failures: list[BaseException] = field(default_factory=list)
    rids: list[str] = field(default_factory=list)
    priorities: list[int | None] = field(default_factory=list)

    async def info(self) -> ModelInfo:
        """Describe a small engine."""
        return ModelInfo(name="plug-in", vocab_size=0x110000, context_length=1000, priorities=True)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Fail as told, else answer."""
        self.rids.append(request.rid)
        self.priorities.append(request.priority)
        if self.failures:
            sink.append([ord("x")], [-1.0], 0)
            raise self.failures.pop(0)
        ids = [*map(ord, self.answer), END]
        sink.append(ids, [-0.5] * len(ids), 0)
        return GenerationResult(finish=FinishReason.STOP)

    async def abort(self, rid: str) -> None:
        """Nothing is ever in flight for long."""

    async def close(self) -> None:
        """Hold nothing."""


@dataclass
class Env:
    """Counts itself in and out of its builder."""

    builder: EnvBuilder
    name: str
    stopped: bool = False

    async def execute(self, command: str, **_: Any) -> CommandResult:
        """Echo the command."""
        if self.builder.hang_commands:
            self.builder.hanging.set()
            await asyncio.get_running_loop().create_future()
        return CommandResult(exit_code=0, output=command.encode())

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Forget them."""

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """There is none."""
        raise FileNotFoundError(path)

    def template_vars(self) -> dict[str, Any]:
        """Say what image its tag stands for."""
        return {"image": "sha256:1"}

    async def stop(self) -> None:
        """Leave the builder's list."""
        self.stopped = True
        self.builder.live.discard(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


@dataclass
class EnvBuilder:
    """Starts environments, or fails as told."""

    fail: BaseException | None = None
    hang_commands: bool = False
    hanging: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a command hangs."""
    started: int = 0
    live: set[str] = field(default_factory=set)
    images: list[str] = field(default_factory=list)
    """What was asked for."""

    async def start(self, spec: ContainerSpec) -> Env:
        """Start one."""
        if self.fail is not None:
            raise self.fail
        self.started += 1
        self.images.append(spec.image)
        env = Env(self, f"{spec.labels['agentflow.episode']}-{self.started}")
        self.live.add(env.name)
        return env

    async def close(self) -> None:
        """Hold nothing."""


class Agent:
    """One generation and one command a turn; submits after `turns`."""

    def __init__(self, sample: SWESample, turns: int) -> None:
        self.sample, self.turns, self.done = sample, turns, 0

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Ask the model; submit when it is time."""
        if not self.sample.messages:
            self.sample.add_message("user", "task")
        assert self.sample.model is not None
        turn = await self.sample.model.generate(self.sample.messages)
        self.sample.add_message("assistant", turn.text)
        self.done += 1
        if self.done < self.turns:
            return StepStatus.NEEDS_ENV_STEP, turn.text
        self.sample.m.rollout.result = SWERolloutResult.SUBMIT
        return StepStatus.TERMINATED, None

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """Run the command."""
        result = await env.execute(pending_action)
        self.sample.add_message("user", result.text)
        return StepStatus.NEEDS_GENERATION, None

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Not how this one is driven."""
        raise AssertionError("an action-level agent is driven by steps")


class WholeAgent:
    """Runs its episode in one go, as a user's own agent may."""

    def __init__(self, sample: SWESample, result: SWERolloutResult) -> None:
        self.sample, self.result = sample, result

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Ask once, run it, leave."""
        self.sample.add_message("user", "task")
        assert self.sample.model is not None
        turn = await self.sample.model.generate(self.sample.messages)
        await env.execute(turn.text)
        return self.result


@dataclass
class AgentBuilder:
    """Builds either kind."""

    turns: int = 2
    whole: SWERolloutResult | None = None

    def build(self, sample: SWESample) -> Agent | WholeAgent:
        """Make one agent."""
        if self.whole is not None:
            return WholeAgent(sample, self.whole)
        return Agent(sample, self.turns)


@dataclass
class Runtime:
    """Resolves everything, or fails as told in one phase."""

    builder: RuntimeBuilder
    sample: SWESample

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Fail as told."""
        self.builder.maybe_fail("bootstrap")

    async def diff(self, env: ContainerEnv) -> None:
        """Find a patch."""
        self.builder.maybe_fail("diff")
        self.sample.m.rollout.patch = "a patch"

    async def eval(self, env: ContainerEnv) -> None:
        """Give the reward."""
        self.builder.maybe_fail("eval")
        self.sample.reward = 1.0


@dataclass
class RuntimeBuilder:
    """Makes runtimes that fail in the phases named."""

    failures: dict[str, Exception] = field(default_factory=dict)

    def maybe_fail(self, phase: str) -> None:
        """Raise what `phase` was told to raise."""
        if phase in self.failures:
            raise self.failures[phase]

    def build(self, sample: SWESample) -> Runtime:
        """Make one runtime."""
        self.maybe_fail("build")
        return Runtime(self, sample)


def access(engine: Engine) -> EngineAccess:
    """Wrap an engine for a flow."""
    return EngineAccess(engine=engine, renderer=CharRenderer(), rids=RidFactory("0" * 12))


def new_sample(uid: str = "u", replica_index: int = 0) -> RolloutSample:
    """Make a trainer's sample."""
    episode = EpisodeId(uid=uid, replica_index=replica_index)
    return RolloutSample(episode=episode, task={"instance_id": uid, "problem_statement": "fix it"})
