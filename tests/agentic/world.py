"""A small world in which both executors run: a scripted engine and environments that take turns.

Everything is on one loop and every wait is a number of turns of that loop, so that one seed is one
interleaving. What the engine says depends on the ids of the request alone: an episode that is
preempted, interrupted or resumed must come to the same tokens as one that is not.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from agentflow.config import RolloutConfig
from agentflow.engine.rids import RidFactory
from agentflow.engine.scripted import (
    DEFAULT_CONTEXT,
    Continuation,
    ScriptedEngine,
    ScriptedSettings,
)
from agentflow.engine.turns import EngineAccess
from agentflow.errors import EnvDied, EnvStartFailed
from agentflow.observe.events import ListEvents
from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
from agentflow.swe.flow import SWEAgentFlow
from agentflow.swe.scheduling_hooks import Scheduling
from agentflow.types import (
    CommandResult,
    EpisodeId,
    RolloutSample,
    StepStatus,
    SWERolloutResult,
)
from executors.data.coordinator import DataCoordinator
from executors.data.token_books import TokenBooks
from executors.hooks import CoordinatorHooks
from executors.runs.token_meter import MeteredModel
from executors.scheduling import make_limits
from executors.weight_sync import WeightSync
from executors.worker import RolloutWorker
from priority.policies import Fcfs, Priority

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from agentflow.protocols import ContainerEnv
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, GenerationRequest, Message
    from priority.policies import Policy, Standing

END = 1
ARRAYS = ("prompts", "responses", "response_mask", "rollout_log_prob")
"""What must be the same, disturbed or not; versions may differ."""


class OneLoop:
    """A runner that has only the test's loop; time is the number of looks at it."""

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def now(self) -> float:
        """Seconds of the loop."""
        return asyncio.get_running_loop().time()

    def wall_time(self) -> float:
        """A fixed time."""
        return 0.0

    def random(self, name: str) -> random.Random:
        """Chance by seed and name."""
        return random.Random(f"{self.seed}/{name}")

    async def to_thread(self, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run it here."""
        return fn(*args, **kwargs)

    async def on_flow_worker(self, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run it here."""
        return await coro

    async def on_worker(self, name: str, coro: Coroutine[Any, Any, Any]) -> Any:
        """Run it here."""
        return await coro


async def turns(n: int) -> None:
    """Let the loop turn `n` times."""
    for _ in range(n):
        await asyncio.sleep(0)


class Chars:
    """Renderer and tokenizer: one id a character; a message ends with END."""

    end_of_turn_ids = (END,)
    vocab_size = 0x110000

    def opening(self, messages: Sequence[Message]) -> list[int]:
        """Render the whole conversation."""
        return [i for m in messages for i in (*map(ord, str(m["content"])), END)]

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> list[int]:
        """Close a cut turn, then render what is new."""
        return ([] if ended else [END]) + self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids."""
        return "".join(map(chr, ids))


class ByContext:
    """Each next id follows from the last ids and their number; a turn ends by the same chance."""

    name = "by-context"
    end_ids = ()

    def continuation(self, request: GenerationRequest) -> Continuation:
        """Say the rest of the turn."""
        ids = request.input_ids.tolist()
        said: list[int] = []
        while not said or said[-1] != END:
            tail = bytes(str(([*ids[-6:], *said][-6:], len(ids) + len(said))), "ascii")
            drawn = zlib.crc32(tail)
            said.append(END if drawn % 40 == 0 else ord("a") + drawn % 26)
        return Continuation(ids=said, logprobs=[-(i % 7) / 8 for i in said])


@dataclass
class Env:
    """Takes a few turns of the loop for each command."""

    envs: Envs
    name: str

    async def execute(self, command: str, **_: Any) -> CommandResult:
        """Answer by what was asked, after a while."""
        self.envs.commands += 1
        self.envs.most_commands = max(self.envs.most_commands, self.envs.commands)
        try:
            await self.envs.wait()
        finally:
            self.envs.commands -= 1
        if self.name in self.envs.dying:
            raise EnvDied(f"{self.name} is gone")
        return CommandResult(exit_code=0, output=f"{zlib.crc32(command.encode())}".encode())

    def template_vars(self) -> dict[str, Any]:
        """Nothing to tell."""
        return {}

    async def stop(self) -> None:
        """Leave."""
        await self.envs.wait()
        self.envs.live.discard(self.name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


@dataclass
class Envs:
    """Starts environments, counts them in and out."""

    chance: random.Random
    slowest: int = 6
    """Turns of the loop that a start, a command or a stop takes at most."""
    live: set[str] = field(default_factory=set)
    started: int = 0
    starting: int = 0
    live_at_close: list[int] = field(default_factory=list)
    most_starting: int = 0
    most_live: int = 0
    commands: int = 0
    most_commands: int = 0
    dying: set[str] = field(default_factory=set)
    """Environments in which the next command finds nothing."""
    broken: set[str] = field(default_factory=set)
    """Keys of episodes whose environments do not start."""
    hold: asyncio.Event | None = None
    """While not set, nothing here ends."""

    async def wait(self) -> None:
        """Take a while."""
        if self.hold is not None:
            await self.hold.wait()
        await turns(self.chance.randint(1, self.slowest))

    async def start(self, spec: ContainerSpec) -> Env:
        """Start one."""
        self.starting += 1
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await self.wait()
        finally:
            self.starting -= 1
        key = spec.labels["agentflow.episode"]
        if key in self.broken:
            raise EnvStartFailed(f"no image for {key}")
        self.started += 1
        name = f"{key}-{self.started}"
        self.live.add(name)
        self.most_live = max(self.most_live, len(self.live))
        return Env(self, name)

    async def close(self) -> None:
        """Hold nothing; tell how many were live."""
        self.live_at_close.append(len(self.live))


class Agent:
    """Generates and runs what it generated, a number of times that its task tells."""

    def __init__(self, sample: SWESample) -> None:
        self.sample, self.done = sample, 0

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Ask the model; submit when it is time."""
        sample = self.sample
        if not sample.messages:
            sample.add_message("user", f"{sample.m.data.problem_statement} {sample.episode}")
        assert sample.model is not None
        turn = await sample.model.generate(sample.messages)
        sample.add_message("assistant", turn.text)
        self.done += 1
        if self.done < sample.m.data.task["turns"]:
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


class Agents:
    """Builds them."""

    def build(self, sample: SWESample) -> Agent:
        """Make one."""
        return Agent(sample)


class Runtime:
    """Judges by the last answer."""

    def __init__(self, sample: SWESample, envs: Envs, judge: asyncio.Event) -> None:
        self.sample, self.envs, self.judge = sample, envs, judge

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Take a while."""
        await self.envs.wait()

    async def diff(self, env: ContainerEnv) -> None:
        """Find a patch."""
        self.sample.m.rollout.patch = str(self.sample.messages[-1]["content"])

    async def eval(self, env: ContainerEnv) -> None:
        """Judge, when the judge may."""
        await self.judge.wait()
        await self.envs.wait()
        self.sample.reward = float(len(self.sample.messages[-1]["content"]) % 2)


class Runtimes:
    """Builds them."""

    def __init__(self, envs: Envs) -> None:
        self.envs = envs
        self.judge = asyncio.Event()
        """While not set, no reward is found."""
        self.judge.set()

    def build(self, sample: SWESample) -> Runtime:
        """Make one."""
        return Runtime(sample, self.envs, self.judge)


@dataclass
class ByChance:
    """Draws each item's class anew whenever it queues: preemptions at random."""

    chance: random.Random
    preempts: bool = True

    def classify(self, standing: Standing) -> Priority:
        """High, one time in four."""
        return Priority(high=self.chance.random() < 0.25, rank=self.chance.random())


class World:
    """An executor with everything around it."""

    def __init__(
        self,
        *,
        seed: int = 0,
        tasks: int = 4,
        n: int = 3,
        policy: Policy | None = None,
        lengths: Mapping[str, int] | None = None,
        context_length: int = DEFAULT_CONTEXT,
        **config: Any,
    ) -> None:
        self.runner = OneLoop(seed)
        self.chance = random.Random(seed)
        values = {"max_concurrency": 4, "gen_concurrency": 2, "env_concurrency": 3}
        values |= {"start_concurrency": 2, "reward_concurrency": 2, "status_s": 3600.0}
        self.config = RolloutConfig(enable_action_level_scheduling=True, **(values | config))
        if not self.config.enable_action_level_scheduling:
            raise AssertionError("set action_level on the world instead")
        chars = Chars()
        self.engine = ScriptedEngine(
            ByContext(),
            tokenizer=chars,  # type: ignore[arg-type]  # all it needs of one
            settings=ScriptedSettings(chunk_tokens=2, context_length=context_length),
        )
        self.meter = MeteredModel(self.engine)
        self.access = EngineAccess(
            engine=self.meter, renderer=chars, rids=RidFactory(f"{seed:012x}")
        )
        self.envs = Envs(self.chance)
        self.runtimes = Runtimes(self.envs)
        self.events = ListEvents()
        self.ended: list[RolloutSample] = []
        self.books = TokenBooks(self.meter.received)
        self.coordinator = DataCoordinator(
            runner=self.runner,
            on_ended=self._take,
            events=self.events,
            max_attempts=self.config.max_attempts,
            observer=self.books,
        )
        lengths = lengths or {}
        for i in range(tasks):
            task = {
                "instance_id": f"t{i}",
                "problem_statement": f"fix {i}",
                "turns": lengths.get(f"t{i}", 2 + i % 4),
            }
            prompt = RolloutSample(episode=EpisodeId(uid=f"t{i}"), task=task)
            self.coordinator.add_prompt(prompt, n=n)
        self.coordinator.finish()
        self.policy: Policy = policy or Fcfs()
        self.worker = self.make_worker("w")

    def _take(self, sample: RolloutSample) -> None:
        self.ended.append(sample)
        self.books.ended(sample)

    def make_worker(self, name: str, *, action_level: bool = True) -> RolloutWorker:
        """Make another worker with a flow of its own over the same parts."""
        config = self.config.model_copy(update={"enable_action_level_scheduling": action_level})
        parts = (Agents(), self.envs, self.runtimes, self.access)
        self.flow: SWEAgentFlow
        if action_level:
            self.flow = ActionLevelSWEAgentFlow(
                *parts,
                scheduling=Scheduling(
                    limits=make_limits(config),
                    policy=self.policy,
                    hooks=CoordinatorHooks(self.coordinator, name),
                    partial_rollout=config.partial_rollout,
                ),
                runner=self.runner,
                events=self.events,
            )
        else:
            self.flow = SWEAgentFlow(*parts, runner=self.runner, events=self.events)
        return RolloutWorker(
            name,
            flow=self.flow,
            coordinator=self.coordinator,
            renderer=self.access.renderer,
            runner=self.runner,
            config=config,
        )

    def sync(self, *workers: RolloutWorker) -> WeightSync:
        """Make the weight sync over these workers, the world's own by default."""
        return WeightSync(
            workers or [self.worker], [self.engine], runner=self.runner, events=self.events
        )

    async def new_weights(self) -> None:
        """What a trainer would do between pause and resume."""
        await turns(2)
        self.engine.weight_version += 1

    async def run(self, beside: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Run the worker to its end, and `beside` as long as that takes."""
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            other = tasks.create_task(beside()) if beside is not None else None
            await self.worker.run_here()
            if other is not None:
                other.cancel()

    async def close(self) -> None:
        """Take it down."""
        await self.flow.close()
        await self.meter.close()

    def by_episode(self) -> dict[EpisodeId, RolloutSample]:
        """Ended samples; each must have ended once."""
        found = {sample.episode: sample for sample in self.ended}
        assert len(found) == len(self.ended)
        return found

    def check_closed(self) -> None:
        """Every sample ended once, every token is in one of them, no environment is left."""
        received = sum(self.meter.received.values())
        spent = sum(
            s.facts.generated_tokens + s.restarted_tokens + s.facts.forked_tokens
            for s in self.by_episode().values()
        )
        tokens = self.check_books()
        assert tokens["received"] == received == spent + tokens["lost"]
        assert not self.envs.live

    def check_books(self) -> dict[str, int]:
        """Take what has ended; both ledgers close. Returns the tokens by cause."""
        self.coordinator.check()
        self.coordinator.take_groups()
        counts = self.coordinator.counts()
        assert counts.issued == counts.delivered + sum(counts.dropped.values())
        tokens = self.books.figures()
        assert tokens["live"] == tokens["buffered"] == 0
        assert 2 * tokens["received"] == sum(tokens.values())
        return tokens


def assert_same_tokens(one: World, other: World) -> None:
    """Both worlds ended with the same samples, to the token."""
    left, right = one.by_episode(), other.by_episode()
    assert left.keys() == right.keys()
    for episode, sample in left.items():
        for name in ARRAYS:
            assert getattr(sample, name).tolist() == getattr(right[episode], name).tolist()
        assert (sample.rewards, sample.ending) == (right[episode].rewards, right[episode].ending)
