"""The records that travel between the parts: identities, requests, results, samples.

Owns no behaviour beyond what derives from its own fields, performs no I/O and knows no engine,
container or trainer. Everything here except `RolloutSample` is immutable.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

Message = dict[str, Any]
"""A chat message in mini-swe-agent's shape: `role`, `content`, optional `extra`."""


class EpisodeId(NamedTuple):
    """Who an episode is, for its whole life, across aborts, workers and restarts.

    A tuple, because every book of the system is kept by it: its hash must cost nothing.
    """

    uid: str
    """The prompt's stable id; all replicas of one GRPO group share it."""
    replica_index: int = 0
    """Place in the group, 0 ≤ replica_index < n."""

    def __str__(self) -> str:
        return f"{self.uid}#{self.replica_index}"

    @property
    def key(self) -> str:
        """16 hex digits that name this episode in rids, container labels and file names."""
        return hashlib.blake2b(str(self).encode(), digest_size=8).hexdigest()


# --- how an episode moves and ends ------------------------------------------------------------


class StepStatus(StrEnum):
    """What a step of an episode asks for next."""

    NEEDS_GENERATION = "needs_generation"
    NEEDS_ENV_STEP = "needs_env_step"
    TERMINATED = "terminated"
    ABORTED = "aborted"


class SWERolloutResult(StrEnum):
    """How the agent left the stage."""

    SUBMIT = "submit"
    """It submitted; the only result that is judged."""
    EXCEED = "exceed"
    """It ran into a limit of steps, cost, time or context."""
    FAILURE = "failure"
    """It could not go on: repeated format errors, its own container destroyed."""


class Blame(StrEnum):
    """Who caused an ending; decides whether it counts (DESIGN decision 14)."""

    POLICY = "policy"
    """Scores and counts, or policies learn to fail."""
    INFRASTRUCTURE = "infrastructure"
    """Masked: reward field 0.0, `remove_sample`, out of group mean and deviation."""


class Cause(StrEnum):
    """Why an episode ended. Every ended episode has exactly one."""

    SUBMITTED = "submitted"
    STEP_LIMIT = "step_limit"
    COST_LIMIT = "cost_limit"
    TIME_LIMIT = "time_limit"
    CONTEXT_FULL = "context_full"
    FORMAT_ERRORS = "format_errors"
    OUT_OF_MEMORY = "out_of_memory"
    CONTAINER_KILLED = "container_killed"
    PREPROCESS_FAILED = "preprocess_failed"
    ENV_START_FAILED = "env_start_failed"
    BOOTSTRAP_FAILED = "bootstrap_failed"
    ENV_DIED = "env_died"
    ENGINE_REJECTED = "engine_rejected"
    ENGINE_UNREACHABLE = "engine_unreachable"
    ENGINE_DIED = "engine_died"
    DIFF_FAILED = "diff_failed"
    EVAL_FAILED = "eval_failed"
    HANDLER_FAILED = "handler_failed"
    WEIGHT_SYNC = "weight_sync"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    """Its group's deadline passed, and the rest of the group did not wait for it."""
    SURPLUS = "surplus"
    """Enough groups were complete without it."""
    STALE = "stale"
    """Its tokens came from weights older than the staleness limit allows."""

    @property
    def blame(self) -> Blame:
        """Who is answerable for this ending."""
        return Blame.POLICY if self in _POLICY_CAUSES else Blame.INFRASTRUCTURE


_POLICY_CAUSES = frozenset(
    {
        Cause.SUBMITTED,
        Cause.STEP_LIMIT,
        Cause.COST_LIMIT,
        Cause.TIME_LIMIT,
        Cause.CONTEXT_FULL,
        Cause.FORMAT_ERRORS,
        Cause.OUT_OF_MEMORY,
        Cause.CONTAINER_KILLED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why and where an episode ended."""

    cause: Cause
    phase: str
    """The stage it ended in: `preprocess`, `start`, `generation`, `command`, `diff`, `eval`; or
    `episode` where that is not known."""
    message: str = ""
    """One sentence for a person."""


class PartialRolloutState(NamedTuple):
    """What a step returns: the state machine's position between two actions.

    One is made for every action, and a tuple is the fastest to make.
    """

    status: StepStatus
    pending_action: str | None = None
    """The shell command to run, when `status` is NEEDS_ENV_STEP."""
    ending: Ending | None = None
    """Set when `status` is TERMINATED or ABORTED."""


class SyncMode(StrEnum):
    """What a weight update does to the generations in flight (DESIGN decision 10)."""

    ABORT = "abort"
    """End them; their episodes are saved and resume first."""
    IN_PLACE = "in_place"
    """Keep their KV; decoding goes on under new weights."""
    RETRACT = "retract"
    """Drop their KV; they are prefilled again under new weights."""
    DRAIN = "drain"
    """Wait until they have ended."""


# --- generation -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one turn is sampled; the names are SGLang's."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    """-1 keeps the whole vocabulary."""
    max_new_tokens: int = 2048
    """Budget of one turn, continuations after an abort included."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    """`sampling_seed` of the engine, where it samples deterministically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request to an engine: continue these ids."""

    rid: str
    """Fixed width, used once in the life of all processes (DESIGN decision 4)."""
    input_ids: NDArray[np.int32]
    """Shape (n,): the whole context, partial tokens of an aborted turn included."""
    sampling: SamplingParams
    """Its `max_new_tokens` is what remains of the turn's budget."""
    priority: int | None = None
    """SGLang's `priority` field; higher first; None leaves it out."""


class FinishReason(StrEnum):
    """Why a generation ended by itself; an abort is an exception instead."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationResult:
    """The end of a generation; its tokens are in the sink that was passed in."""

    finish: FinishReason
    matched: int | str | None = None
    """The stop token or stop string that ended it."""
    cached_tokens: int = 0
    """Prompt tokens that the engine did not have to prefill."""
    retractions: int = 0
    """How often the engine threw the request's KV away under pressure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What an engine says about itself once."""

    name: str
    vocab_size: int
    """Valid ids are 0 ≤ id < vocab_size."""
    context_length: int
    """Longest prompt + output, in tokens."""
    weight_version: int = 0
    kv_tokens: int | None = None
    """KV capacity in tokens, where known."""
    priorities: bool = False
    """Whether it orders its queue by the requests' `priority`, higher first."""


# --- environments -----------------------------------------------------------------------------

DEFAULT_WORKDIR = "/testbed"
"""Where SWE-bench's images keep the repository."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """What an environment is started with (the specification's `container_args`)."""

    image: str = ""
    """Image reference; environments without images ignore it."""
    workdir: str = DEFAULT_WORKDIR
    """Where the repository stands inside, and commands run unless told otherwise."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables of every command."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """For finding it again: run id, owner, episode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """The end of one shell command. A time-out is a result, not an exception."""

    exit_code: int
    """128 + n for a command killed by signal n; -1 after a time-out."""
    output: bytes
    """stdout and stderr in the order written: all of it, or head and tail."""
    dropped_bytes: int = 0
    """Bytes left out between head and tail."""
    timed_out: bool = False
    out_of_memory: bool = False
    duration_s: float = 0.0

    @property
    def text(self) -> str:
        """The output as UTF-8; what is not UTF-8 becomes U+FFFD."""
        return self.output.decode("utf-8", errors="replace")


# --- what the trainer gets --------------------------------------------------------------------


class TerminationClass(StrEnum):
    """The eight classes that outcomes are reported in."""

    RESOLVED = "resolved"
    WRONG_ANSWER = "wrong_answer"
    MAX_TURNS = "max_turns"
    CONTEXT_OVERFLOW = "context_overflow"
    AGENT_TIMEOUT = "agent_timeout"
    INFRA_CONN = "infra_conn"
    INFRA_SANDBOX = "infra_sandbox"
    INFRA_OTHER = "infra_other"


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeFacts:
    """What an ended episode did, for reports and ledgers; filled in by the flow."""

    turns: int = 0
    generated_tokens: int = 0
    """Tokens of the final attempt that an engine generated (mask 1)."""
    forked_tokens: int = 0
    """Generated tokens lost because the history was rewritten."""
    forks: int = 0
    generation_s: float = 0.0
    environment_s: float = 0.0
    """Starts and commands."""
    reward_s: float = 0.0
    image: str = ""
    """What its environment was made of, by its digest; "" where environments have no image."""
    submission: str = ""
    """What the agent printed on submitting."""
    patch: str | None = None
    """The change as `git diff` prints it."""
    verdict: Mapping[str, Any] | None = None
    """The judge's report."""
    messages: Sequence[Message] = ()
    """The whole conversation."""


_NO_INT32: Final[NDArray[np.int32]] = np.empty(0, np.int32)
_NO_INT8: Final[NDArray[np.int8]] = np.empty(0, np.int8)
_NO_FLOAT32: Final[NDArray[np.float32]] = np.empty(0, np.float32)
_NO_FACTS: Final = EpisodeFacts()
"""What a sample has before it has anything; shared by all of them."""


@dataclass(slots=True, kw_only=True)
class RolloutSample:
    """One episode as a trainer issues it and gets it back (the text's `dc_sample`).

    `responses`, `response_mask`, `rollout_log_prob` and `weight_versions` are equally long.
    """

    episode: EpisodeId
    task: Mapping[str, Any]
    """The raw task row (SWE-bench's fields)."""
    validate: bool = False
    """A validation prompt: sampled and judged, never trained on."""
    attempt: int = 0
    """How often it was started before."""
    sampling: SamplingParams | None = None
    """How its turns are sampled; None takes the engine's default."""
    raw_prompt: list[Message] = field(default_factory=list)
    """Messages of the first prompt, kept for a fallback sample."""
    raw_prompt_ids: NDArray[np.int32] = field(default_factory=lambda: _NO_INT32)
    prompts: NDArray[np.int32] = field(default_factory=lambda: _NO_INT32)
    """Shape (p,): the ids actually sent for the first generation."""
    responses: NDArray[np.int32] = field(default_factory=lambda: _NO_INT32)
    """Shape (r,): everything after `prompts`, generated and observed."""
    response_mask: NDArray[np.int8] = field(default_factory=lambda: _NO_INT8)
    """Shape (r,): 1 where the engine generated the token."""
    rollout_log_prob: NDArray[np.float32] = field(default_factory=lambda: _NO_FLOAT32)
    """Shape (r,): nats; 0.0 where the mask is 0."""
    weight_versions: NDArray[np.int32] = field(default_factory=lambda: _NO_INT32)
    """Shape (r,): version that generated the token; -1 where the mask is 0."""
    rewards: float = 0.0
    remove_sample: bool = False
    """True keeps it out of the loss and of its group's mean and deviation."""
    ending: Ending | None = None
    result: SWERolloutResult | None = None
    termination: TerminationClass | None = None
    partial_agent_data: Any | None = None
    """An aborted episode's state, with which the next attempt goes on."""
    restart: bool = False
    """The next attempt starts clean: what the last one has is too old to go on with."""
    restarted_tokens: int = 0
    """Generated tokens of earlier attempts that were thrown away by a clean restart."""
    stale_tokens: int = 0
    """Those of them that were thrown away for being too old."""
    facts: EpisodeFacts = _NO_FACTS
    metadata: dict[str, Any] = field(default_factory=dict)
    """The trainer's own; carried through untouched."""
