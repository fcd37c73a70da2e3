"""Providers and an engine as a user would plug them in, for runs that need nothing real."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any, Self

from agentflow.config_loading import Sources, check
from agentflow.engine.rids import RidFactory
from agentflow.engine.turns import EngineAccess
from agentflow.errors import EngineUnreachable, EnvStartFailed
from agentflow.types import (
    CommandResult,
    EpisodeId,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    ModelInfo,
    StepStatus,
    SWERolloutResult,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from agentflow.config import AgentflowConfig
    from agentflow.protocols import ContainerEnv, TokenSink
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, Message

END = 1
LIVE: set[str] = set()
"""Environments that were started and not stopped."""


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


class Engine:
    """Says `ls` for ever."""

    def __init__(self, *, reachable: bool = True) -> None:
        self.reachable = reachable
        self.closed = False

    async def info(self) -> ModelInfo:
        """Describe a small engine."""
        if not self.reachable:
            raise EngineUnreachable("connection refused")
        return ModelInfo(name="always-ls", vocab_size=0x110000, context_length=1000)

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Give three tokens."""
        await asyncio.sleep(0)
        sink.append([ord("l"), ord("s"), END], [-0.5] * 3, 0)
        return GenerationResult(finish=FinishReason.STOP)

    async def abort(self, rid: str) -> None:
        """Nothing stays in flight."""

    async def close(self) -> None:
        """Say so."""
        self.closed = True


def make_engine(config: AgentflowConfig, tasks: Sequence[Mapping[str, Any]]) -> EngineAccess:
    """Stand in for `build_engine`."""
    return EngineAccess(engine=Engine(), renderer=CharRenderer(), rids=RidFactory())


def make_tasks(config: AgentflowConfig) -> list[dict[str, Any]]:
    """Stand in for `select_tasks`: three tasks."""
    return [{"instance_id": f"task/{i}", "problem_statement": "fix it"} for i in range(3)]


class Env:
    """Echoes commands, or hangs when its builder says so."""

    def __init__(self, name: str, *, hang: bool, hang_stop: bool) -> None:
        self.name, self.hang, self.hang_stop = name, hang, hang_stop
        LIVE.add(name)

    async def execute(self, command: str, **_: Any) -> CommandResult:
        """Echo, or never answer."""
        if self.hang:
            sys.stdout.write("hanging\n")
            sys.stdout.flush()
            await asyncio.get_running_loop().create_future()
        return CommandResult(exit_code=0, output=command.encode())

    def template_vars(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}

    async def stop(self) -> None:
        """Be gone, or never."""
        if self.hang_stop:
            await asyncio.get_running_loop().create_future()
        LIVE.discard(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class EnvBuilder:
    """`hang`: commands never end; `hang_on`: those of one task; `hang_stop`; `fail`, `bug`."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf, self.started = conf, 0
        if conf.get("init_fails"):
            raise OSError("no engine")

    async def start(self, spec: ContainerSpec) -> Env:
        """Start one."""
        if self.conf.get("fail"):
            raise EnvStartFailed("no room")
        if self.conf.get("bug"):
            raise PermissionError("no socket")
        self.started += 1
        stuck = spec.labels["agentflow.episode"] == EpisodeId(uid=self.conf.get("hang_on", "")).key
        return Env(
            f"env-{self.started}",
            hang=stuck or bool(self.conf.get("hang")),
            hang_stop=bool(self.conf.get("hang_stop")),
        )

    async def close(self) -> None:
        """Hold nothing."""


class Agent:
    """Runs one command, then submits."""

    def __init__(self, sample: SWESample, conf: dict[str, Any]) -> None:
        self.sample, self.conf = sample, conf

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Ask the model; submit the second time."""
        sample = self.sample
        if not sample.messages:
            sample.add_message("user", "task")
        assert sample.model is not None
        turn = await sample.model.generate(sample.messages)
        sample.add_message("assistant", turn.text)
        if self.conf.get("bug") == sample.m.data.instance_id:
            raise ZeroDivisionError("a bug in the agent")
        if sample.model.turns == 1:
            return StepStatus.NEEDS_ENV_STEP, turn.text
        sample.m.rollout.result = SWERolloutResult.SUBMIT
        return StepStatus.TERMINATED, None

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """Run the command."""
        self.sample.add_message("user", (await env.execute(pending_action)).text)
        return StepStatus.NEEDS_GENERATION, None

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Not how this one is driven."""
        raise AssertionError

    def serialize(self) -> dict[str, Any]:
        """Give the trajectory in the library's format."""
        return {
            "info": {},
            "messages": self.sample.messages,
            "trajectory_format": "mini-swe-agent-1.1",
        }


class AgentBuilder:
    """`bug`: the task on which the agent has a bug; `build_fails`: none can be made."""

    def __init__(self, conf: dict[str, Any]) -> None:
        self.conf = conf

    def build(self, sample: SWESample) -> Agent:
        """Make one."""
        if self.conf.get("build_fails"):
            raise LookupError("no such prompt")
        return Agent(sample, self.conf)


class Runtime:
    """Resolves replica 0 and no other."""

    def __init__(self, sample: SWESample) -> None:
        self.sample = sample

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Nothing to do."""

    async def diff(self, env: ContainerEnv) -> None:
        """Find a patch."""
        self.sample.m.rollout.patch = f"patch of {self.sample.episode}"

    async def eval(self, env: ContainerEnv) -> None:
        """Judge."""
        self.sample.reward = float(self.sample.episode.replica_index == 0)


class RuntimeBuilder:
    """Makes them."""

    def __init__(self, conf: dict[str, Any]) -> None: ...

    def build(self, sample: SWESample) -> Runtime:
        """Make one."""
        return Runtime(sample)


def make_config(out: Path, **flow: dict[str, Any]) -> AgentflowConfig:
    """Configure a run of these parts: `agent`, `environment`, … with keys of their own."""
    builders = {"agent": "AgentBuilder", "environment": "EnvBuilder", "runtime": "RuntimeBuilder"}
    sections = {
        section: {"name": f"{__file__}:{cls}", **flow.get(section, {})}
        for section, cls in builders.items()
    }
    values = {
        "run": {"out": str(out), **flow.get("run", {})},
        "tasks": {"source": "three"},
        "engine": {"url": "parts"},
        "rollout": {"max_concurrency": 2, **flow.get("rollout", {})},
        "observe": flow.get("observe", {}),
        "flow": sections,
    }
    return check(Sources(values=values))
