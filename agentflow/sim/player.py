"""TraceAgent, TraceRuntime, TraceRenderer, TraceLengths: an episode played from its trace.

The flow, the executor, the token record and the engine client's protocol are those of production;
only what a model would say and a command would do is replaced by its length and its duration.
"""

from __future__ import annotations

import zlib
from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from agentflow.engine.rids import episode_key
from agentflow.types import RolloutSample, StepStatus, SWERolloutResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from agentflow.protocols import ContainerEnv
    from agentflow.sim.trace import EpisodeTrace
    from agentflow.swe.sample import SWESample
    from agentflow.types import ContainerSpec, GenerationRequest, Message

END_OF_TURN = 1
"""The id by which the simulated model ends its turn."""
_FIRST_ID = 2
COMMAND_TIMEOUT_S = 900.0
"""Above every shipped workload's longest command: only a hung command meets it."""


def sample_of(trace: EpisodeTrace) -> RolloutSample:
    """Return the sample that a trainer would issue for `trace`."""
    task = {"instance_id": trace.episode.uid, "problem_statement": "", "trace": trace}
    return RolloutSample(episode=trace.episode, task=task)


class TraceRenderer:
    """Messages `name count` become `count` ids that depend on the name."""

    end_of_turn_ids = (END_OF_TURN,)

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def opening(self, messages: Sequence[Message]) -> array[int]:
        """Ids of all messages."""
        ids = array("i")
        for message in messages:
            ids.frombytes(self._ids(str(message["content"])).tobytes())
        return ids

    def after_turn(self, messages: Sequence[Message], *, ended: bool) -> array[int]:
        """Ids of what is new; a turn that was cut is ended first."""
        return array("i", [] if ended else [END_OF_TURN]) + self.opening(messages)

    def decode(self, ids: Sequence[int]) -> str:
        """Stand in for the text."""
        return f"said {len(ids)}"

    def _ids(self, content: str) -> NDArray[np.int32]:
        count = int(content.rsplit(" ", 1)[1])
        room = max(self._vocab_size - _FIRST_ID - count, 1)
        first = _FIRST_ID + zlib.crc32(content.encode()) % room
        return np.arange(first, first + count, dtype=np.int32)


class TraceLengths:
    """How much the model still says, told by whose request it is and how far it has come."""

    def __init__(self, traces: Iterable[EpisodeTrace]) -> None:
        self._ends = {trace.episode.key: trace.turn_ends() for trace in traces}

    def __call__(self, request: GenerationRequest) -> int | None:
        """Tokens to the end of the turn that `request` is in; `OutputLengths`."""
        ends = self._ends.get(episode_key(request.rid) or "")
        if ends is None:
            return None
        turn = bisect_right(ends, len(request.input_ids))
        return ends[turn] - len(request.input_ids) if turn < len(ends) else 1


class TraceAgentBuilder:
    """Makes agents that play the trace in their sample's task."""

    def build(self, sample: SWESample) -> TraceAgent:
        """Make the agent of one episode."""
        return TraceAgent(sample)


class TraceAgent:
    """Plays one trace; an `ActionLevelAgent`."""

    def __init__(self, sample: SWESample) -> None:
        self._sample = sample
        self._trace = trace_of(sample)
        self._turn = 0

    async def generation_step(self) -> tuple[StepStatus, str | None]:
        """Generate the turn; submit after the last one, or with its command."""
        sample, trace = self._sample, self._trace
        if not sample.messages:
            sample.add_message("user", f"{trace.episode.uid} {trace.prompt}")
        assert sample.model is not None
        turn = await sample.model.generate(sample.messages)
        sample.add_message("assistant", turn.text)
        command_s = trace.turns[self._turn].command_s
        if self._last and not command_s:
            sample.m.rollout.result = SWERolloutResult.SUBMIT
            return StepStatus.TERMINATED, None
        return StepStatus.NEEDS_ENV_STEP, f"sleep {command_s:.6f}"

    @property
    def _last(self) -> bool:
        return self._turn == len(self._trace.turns) - 1

    async def env_step(self, env: ContainerEnv, pending_action: str) -> tuple[StepStatus, None]:
        """Run the command and append the observation."""
        await env.execute(pending_action, timeout_s=COMMAND_TIMEOUT_S)
        if self._last:
            self._sample.m.rollout.result = SWERolloutResult.SUBMIT
            return StepStatus.TERMINATED, None
        observation = self._trace.turns[self._turn].observation
        self._sample.add_message("user", f"{self._trace.episode}/{self._turn} {observation}")
        self._turn += 1
        return StepStatus.NEEDS_GENERATION, None

    async def run_episode(self, env: ContainerEnv) -> SWERolloutResult:
        """Play the whole trace."""
        while True:
            status, command = await self.generation_step()
            if status is StepStatus.TERMINATED:
                return SWERolloutResult.SUBMIT
            assert command is not None
            if (await self.env_step(env, command))[0] is StepStatus.TERMINATED:
                return SWERolloutResult.SUBMIT


class TraceRuntimeBuilder:
    """Makes runtimes that take a trace's time to judge it."""

    def build(self, sample: SWESample) -> TraceRuntime:
        """Make the runtime of one episode."""
        return TraceRuntime(sample)


class TraceRuntime:
    """Judges one trace."""

    def __init__(self, sample: SWESample) -> None:
        self._sample = sample

    async def bootstrap(self, env: ContainerEnv) -> None:
        """Nothing to put there: the start's time includes it."""

    async def diff(self, env: ContainerEnv) -> None:  # noqa: ARG002  # Runtime's signature
        """Find a patch."""
        self._sample.m.rollout.patch = f"patch of {self._sample.episode}"

    async def eval(self, env: ContainerEnv) -> None:
        """Take the verdict's time, then give the reward."""
        trace = trace_of(self._sample)
        await env.execute(f"sleep {trace.verify_s:.6f}", check=True)
        self._sample.reward = float(trace.resolved)


class StartTimes:
    """How long environments take to start, told by the episode in their labels."""

    def __init__(self, traces: Iterable[EpisodeTrace]) -> None:
        self._start_s = {trace.episode.key: trace.start_s for trace in traces}

    def __call__(self, spec: ContainerSpec) -> float:
        """Seconds with no other start under way."""
        return self._start_s[spec.labels["agentflow.episode"]]


def tokens_to_come(sample: SWESample) -> int:
    """Tokens that the episode's turns will still generate."""
    trace, length = trace_of(sample), len(sample.record)
    left = 0
    for turn, end in zip(trace.turns, trace.turn_ends(), strict=True):
        left += min(turn.output, max(end - length, 0))
    return left


def trace_of(sample: SWESample) -> EpisodeTrace:
    """Return the trace in a sample's task."""
    trace: EpisodeTrace = sample.m.data.task["trace"]
    return trace
