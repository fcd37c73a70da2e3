"""Agents, engines and environments that take no time, for what scheduling itself costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.types import (
    CommandResult,
    FinishReason,
    GenerationResult,
    ModelInfo,
    StepStatus,
    SWERolloutResult,
)

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping, Sequence

    from agentflow.protocols import ContainerEnv, TokenSink
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, GenerationRequest, Message

END = 1
_IDS, _LOGPROBS = [5, 6, 7, END], [-0.5] * 4
_DONE = GenerationResult(finish=FinishReason.STOP)
_OUTPUT = CommandResult(exit_code=0, output=b"ok")
_INFO = ModelInfo(name="instant", vocab_size=1000, context_length=1 << 20)


class InstantEngine:
    """Answers in the step in which it is asked."""

    async def info(self) -> ModelInfo:
        """Describe itself."""
        return _INFO

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:  # noqa: ARG002  # Model's
        """Say four tokens."""
        sink.append(_IDS, _LOGPROBS, 0)
        return _DONE

    async def abort(self, rid: str) -> None:
        """Nothing is in flight."""

    async def close(self) -> None:
        """Hold nothing."""


class InstantEnv:
    """Runs every command in no time; or never ends one, when its builder says so."""

    name = "instant"

    def __init__(self, never: asyncio.Event | None) -> None:
        self._never = never

    async def execute(self, command: str, **_: Any) -> CommandResult:  # noqa: ARG002  # ContainerEnv's
        """Be done."""
        if self._never is not None:
            await self._never.wait()
        return _OUTPUT

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Forget them."""

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """There is none."""
        raise FileNotFoundError(path, max_bytes)

    def template_vars(self) -> dict[str, Any]:
        """Tell what prompts ask for."""
        return {"cwd": "/testbed", "system": "Linux", "machine": "x86_64", "release": "6"}

    async def stop(self) -> None:
        """Be gone."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class InstantEnvs:
    """Starts them."""

    def __init__(self, never: asyncio.Event | None = None) -> None:
        """While `never` is given and not set, commands do not end."""
        self._never = never

    async def start(self, spec: ContainerSpec) -> InstantEnv:  # noqa: ARG002  # ContainerEnvBuilder's
        """Start one."""
        return InstantEnv(self._never)

    async def close(self) -> None:
        """Hold nothing."""


class InstantAgent:
    """Asks the engine for every turn, without a conversation; submits after its last one."""

    def __init__(self, sample: SWESample, engine: InstantEngine) -> None:
        self._sample = sample
        self._engine = engine
        self._left: int = sample.m.data.task["turns"]

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Take a turn."""
        await self._engine.generate(None, self._sample.record)  # type: ignore[arg-type]
        self._left -= 1
        if self._left:
            return StepStatus.NEEDS_ENV_STEP, "true"
        self._sample.m.rollout.result = SWERolloutResult.SUBMIT
        return StepStatus.TERMINATED, None

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """Run the command."""
        await env.execute(pending_action)
        return StepStatus.NEEDS_GENERATION, None

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Not how it is driven."""
        raise NotImplementedError(env)


class InstantAgents:
    """Builds them."""

    def __init__(self, engine: InstantEngine) -> None:
        self._engine = engine

    def build(self, sample: SWESample) -> InstantAgent:
        """Make one."""
        return InstantAgent(sample, self._engine)


class InstantRuntime:
    """Resolves everything."""

    def __init__(self, sample: SWESample) -> None:
        self._sample = sample

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Nothing to do."""

    async def diff(self, env: ContainerEnv) -> None:
        """Nothing to read."""

    async def eval(self, env: ContainerEnv) -> None:  # noqa: ARG002  # Runtime's
        """Be content."""
        self._sample.reward = 1.0


class InstantRuntimes:
    """Builds them."""

    def build(self, sample: SWESample) -> InstantRuntime:
        """Make one."""
        return InstantRuntime(sample)


class Renderer:
    """One id a character."""

    end_of_turn_ids = (END,)

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Render all."""
        return [ord(c) % 1000 for m in messages for c in str(m["content"])] + [END]

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Render what is new."""
        return ([] if ended else [END]) + self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Give a well-formed turn, whatever the ids."""
        return f"I look.\n\n```mswea_bash_command\nls {len(ids)}\n```"


def access(engine: InstantEngine) -> EngineAccess:
    """Wrap an engine for a flow."""
    return EngineAccess(engine=engine, renderer=Renderer(), rids=RidFactory())
