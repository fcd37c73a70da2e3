"""Every seam of the system, in one file: what a plug-in implements and what a part may rely on.

Model        token ids in, token ids out (SGLang, scripted, simulated)
EngineAdmin  the same engine's pause, around a weight update
Replicated   an engine of several servers, each of which has a worker of its own
Agent        turns generations into commands, and their output into the next prompt
ContainerEnv where commands run
Runtime      puts the task into an environment, reads the patch out, judges it
AgentFlow    an episode, step by step
Runner       time, threads and chance, so that all of it also runs in virtual time
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from types import TracebackType

    from agentflow.scheduling import WorkItem
    from agentflow.swe.sample import SWESample
    from agentflow.types import (
        CommandResult,
        ContainerSpec,
        EpisodeId,
        GenerationRequest,
        GenerationResult,
        ModelInfo,
        PartialRolloutState,
        RolloutSample,
        StepStatus,
        SWERolloutResult,
        SyncMode,
    )

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Time, threads and chance. Nothing touches a clock, thread or generator but through it.

    `asyncio.sleep` and `asyncio.timeout` are allowed everywhere: they follow the running loop,
    whose clock a runner owns.
    """

    def now(self) -> float:
        """Monotonic seconds of the loop's clock."""
        ...

    def wall_time(self) -> float:
        """Seconds since the epoch, for records that people read."""
        ...

    def random(self, name: str) -> random.Random:
        """A new generator for `name`, the same for the same run seed and name."""
        ...

    async def to_thread(self, fn: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run blocking work off the loop."""
        ...

    async def on_flow_worker(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run on the shared flow worker: its own thread and loop; in virtual time, this loop.

        Like awaiting `coro` here: a cancelled wait cancels it there, and ends when it has ended.
        """
        ...

    async def on_worker(self, name: str, coro: Coroutine[Any, Any, T]) -> T:
        """Do the same on the worker `name`, whose thread starts with its first call."""
        ...


class TokenSink(Protocol):
    """Where an engine puts tokens as they arrive, so that no end of a request can lose them."""

    def append(self, ids: Sequence[int], logprobs: Sequence[float], version: int) -> None:
        """Take generated ids, their log-probabilities (nats) and their weight version."""
        ...


class Model(Protocol):
    """An engine that continues token ids."""

    async def info(self) -> ModelInfo:
        """Describe the engine; the first call connects. Raises EngineUnreachable."""
        ...

    async def generate(self, request: GenerationRequest, sink: TokenSink) -> GenerationResult:
        """Continue `request.input_ids`; tokens go to `sink` as they come.

        Raises GenerationAborted after an abort, otherwise an EngineError. However it ends,
        cancellation included, the sink holds exactly what was received.
        """
        ...

    async def abort(self, rid: str) -> None:
        """Ask that exactly the request `rid` ends; harmless when it has ended already."""
        ...

    async def close(self) -> None:
        """Release connections. Idempotent."""
        ...


@runtime_checkable
class EngineAdmin(Protocol):
    """An engine whose generations can be paused, so that its weights can be replaced."""

    async def pause(self, mode: SyncMode) -> None:
        """Stop generating; new requests are held until `resume`.

        What is in flight ends with GenerationAborted (`abort`), stands still (`in_place`), goes
        back to the queue (`retract`), or is waited for (`drain`). Raises EngineAdminFailed; then
        nothing stays paused.
        """
        ...

    async def resume(self) -> None:
        """Go on generating. Harmless when not paused. Raises EngineAdminFailed."""
        ...

    async def flush(self) -> None:
        """Drop cached prefixes. Raises EngineAdminFailed while their KV is in use."""
        ...


@runtime_checkable
class Replicated(Protocol):
    """An engine of several servers with the same weights."""

    def replicas(self) -> Sequence[Model]:
        """Give each by itself, for the worker that fills it.

        They are parts of the engine: it alone is paused and closed, and where a replica breaks down
        its generations go to the others.
        """
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """An engine that counts what it generates."""

    async def generated_tokens(self) -> int:
        """Return the tokens of all generations that have ended, whoever asked for them.

        Raises EngineAdminFailed where its servers keep no count.
        """
        ...


@runtime_checkable
class Versioned(Protocol):
    """An engine that does not learn its weights' version by itself."""

    weight_version: int
    """That generated tokens carry from now on."""


class ContainerEnv(Protocol):
    """A place where an episode's commands run; only its file system lasts between commands."""

    @property
    def name(self) -> str:
        """Identifies it in logs and labels."""
        ...

    async def execute(
        self,
        command: str,
        *,
        check: bool = False,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> CommandResult:
        """Run `command` in bash, stdin closed, in its own process group.

        At the deadline the whole tree is killed and the result says `timed_out`. Raises
        CommandFailed when `check` and the exit code is not 0, EnvDied or ContainerKilled when
        the environment is gone.
        """
        ...

    async def write_files(self, files: Mapping[str, bytes], *, root: str | None = None) -> None:
        """Write `files` (path relative to `root`, default the workdir) with their folders."""
        ...

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Return a regular file's bytes.

        Raises FileNotFoundError, or ValueError when it is larger than `max_bytes` or not a
        regular file inside the environment.
        """
        ...

    def template_vars(self) -> dict[str, Any]:
        """What prompts may say about it: `cwd`, `system`, `machine`, ..."""
        ...

    async def stop(self) -> None:
        """Remove it and everything that ran in it. Idempotent, safe to call when it is dead."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
        /,
    ) -> None: ...


class ContainerEnvBuilder(Protocol):
    """Built once from its section of the configuration: `Builder(subconf)`."""

    async def start(self, spec: ContainerSpec) -> ContainerEnv:
        """Bring an environment up. Raises EnvStartFailed; leaves nothing behind when it does."""
        ...

    async def close(self) -> None:
        """Release what the builder holds for all environments. Idempotent."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Drives one episode to its end by itself."""

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Run until the agent leaves. Raises GenerationAborted; calling again goes on."""
        ...


@runtime_checkable
class ActionLevelAgent(Agent, Protocol):
    """An agent that can be driven one action at a time."""

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """One generation: the status, and the command when it is NEEDS_ENV_STEP."""
        ...

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """One command: run it and append the observation."""
        ...


@runtime_checkable
class EnvAware(Protocol):
    """An agent whose prompts speak of its environment."""

    def attach(self, env: ContainerEnv) -> None:
        """Know the environment; called when it has started and when an attempt resumes in it."""
        ...


@runtime_checkable
class Mortal(Protocol):
    """An environment that can tell of its death before anything is run in it."""

    async def check_alive(self) -> None:
        """Raise an EpisodeError, as the next command would, when it is known to be dead; cheap."""
        ...


@runtime_checkable
class Gauging(Protocol):
    """A builder that can tell what its environments wait for."""

    def gauges(self) -> Mapping[str, Mapping[str, float]]:
        """Give slots, queue and waits of each stage, and a pool's state; callable on any thread.

        A stage has `limit`, `in_use`, `waiting`, `acquired`, `waited_s` and `longest_wait_s`; a
        pool `ready`, `coming`, `hits` and `misses`.
        """
        ...


@runtime_checkable
class Leasing(Protocol):
    """A builder whose environments another process can go on with, when this one has died."""

    def lease(self, env: Any, /) -> Any:
        """Say how to come back to an environment of this builder; picklable."""
        ...

    async def hold(self, lease: Any, *, journal: str) -> None:
        """Spare the environment from sweeps, also if this process dies.

        For some hours, and not longer than the file `journal` exists.
        """
        ...

    async def attach(self, lease: Any) -> ContainerEnv:
        """Take an environment over, which is held no longer. Raises EnvDied when it is gone."""
        ...

    async def release(self, lease: Any) -> None:
        """Remove an environment that nobody will attach to. Harmless when it is gone."""
        ...


@runtime_checkable
class Detaching(Leasing, Protocol):
    """A builder whose environments can wait, let go, for an interrupted episode to go on."""

    async def detach(self, env: Any) -> Any:
        """Let go of an environment; returns its lease. Raises EnvDied; then it is not let go."""
        ...


class Keeper(Protocol):
    """What keeps episodes for the case that this process dies (a journal). Called by the flow."""

    @property
    def place(self) -> str:
        """The file that exists as long as somebody may go on with what is kept."""
        ...

    def keep(self, sample: SWESample) -> None:
        """Take an episode as it stands between two half-steps; does not wait."""
        ...

    def generating(self, sample: SWESample) -> None:
        """Take the tokens of a generation as they come, until the next `keep`."""
        ...

    async def kept(self) -> None:
        """Return when everything taken so far would survive. Raises what keeps it from that."""
        ...


class AgentBuilder(Protocol):
    """Built once from its section of the configuration: `Builder(subconf)`."""

    def build(self, sample: SWESample) -> Agent:
        """Make the agent of one episode."""
        ...


class Runtime(Protocol):
    """What a task means inside an environment. One per episode, reached as `sample.m.runtime`."""

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Put the repository there in its buggy state. Raises BootstrapFailed."""
        ...

    async def diff(self, env: ContainerEnv) -> None:
        """Read the patch into `sample.m.rollout.patch`. Raises DiffFailed."""
        ...

    async def eval(self, env: ContainerEnv) -> None:
        """Judge the patch in `env`, a fresh one; sets `sample.reward`. Raises EvalFailed."""
        ...


class RuntimeBuilder(Protocol):
    """Built once from its section of the configuration: `Builder(subconf)`."""

    def build(self, sample: SWESample) -> Runtime:
        """Make the runtime of one episode; blocking (called off the loop)."""
        ...


class AgentFlow(Protocol):
    """An episode, step by step; what executors drive and users plug in."""

    async def preprocess(self, sample: RolloutSample) -> SWESample:
        """Make the flow's own sample, restoring `partial_agent_data` where there is one."""
        ...

    async def run_generation_step(
        self, sample: SWESample, state: PartialRolloutState | None
    ) -> PartialRolloutState:
        """Start the environment if `state` is None, then generate."""
        ...

    async def run_env_step(
        self, sample: SWESample, state: PartialRolloutState
    ) -> PartialRolloutState:
        """Run `state.pending_action`."""
        ...

    async def finalize(self, sample: SWESample, state: PartialRolloutState) -> None:
        """Read the result out of the environment and remove it."""
        ...

    async def on_abort(self, sample: SWESample, state: PartialRolloutState) -> None:
        """Let go of the environment of an episode that did not end by itself."""
        ...

    async def reward(self, sample: SWESample) -> None:
        """Judge a submitted result in a fresh environment."""
        ...

    async def project_to_dc_sample(self, sample: SWESample, dc_sample: RolloutSample) -> None:
        """Copy tokens, reward and facts to the trainer's sample."""
        ...

    async def close(self) -> None:
        """Release what outlives episodes. Idempotent."""
        ...


class Housing(Protocol):
    """Who may hold a context in the engine's memory; hears of every move of the scheduler."""

    def fits(self, item: WorkItem) -> bool:
        """Whether a pending item may begin to generate."""
        ...

    def moved(self, item: WorkItem) -> bool:
        """Hear where an item is now; True: it must give its context up, and wait."""
        ...


class EventSink(Protocol):
    """Takes what happened, in order; never raises, never blocks."""

    def emit(self, kind: str, episode: EpisodeId | None = None, /, **facts: Any) -> None:
        """Record one event; `facts` are JSON scalars."""
        ...
