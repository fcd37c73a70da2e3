"""The configuration of a run: every section, every key, with its meaning and unit.

Owns names, types, defaults and ranges. Where the values come from, and how a problem is told, is
`config_loading`'s; a provider's own keys inside `flow` are the provider's `config_class`'s.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    Strict,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agentflow.types import SamplingParams

StrList = Annotated[tuple[str, ...], Strict(strict=False)]
"""A YAML list of strings."""


class Section(BaseModel):
    """Base of all sections: unknown keys are errors, types are not guessed, values are fixed."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class RunConfig(Section):
    """What this run is and where it is kept."""

    out: str | None = Field(default=None, min_length=1)
    """The run directory; must be new or empty."""
    seed: int = Field(default=0, ge=0)
    """Everything random in the run derives from it."""
    n: int = Field(default=1, ge=1)
    """Episodes per task: the replicas of one GRPO group."""
    tag: str = ""
    """A word of yours that run.json repeats."""


class TasksConfig(Section):
    """Which tasks are rolled out."""

    source: str | None = Field(default=None, min_length=1)
    """`bundled`, `pypi`, or a file of SWE-bench rows (JSON or JSON lines)."""
    limit: int | None = Field(default=None, ge=1)
    """At most this many, the first ones."""
    only: StrList = ()
    """These instance ids alone."""


class EngineConfig(Section):
    """What generates tokens."""

    url: str | None = Field(default=None, min_length=1)
    """`http://host:port` of an SGLang server, or of several with commas, each of which has a worker
    of its own; or `scripted:oracle`, `scripted:noop`, `scripted:noisy:SEED`, `scripted:tamper`,
    `scripted:RUN_DIR`."""
    model: str | None = None
    """Folder with the model's tokenizer and chat template; None takes the bundled ones."""
    api_key_env: str | None = Field(default=None, min_length=1)
    """Name of the environment variable that holds the server's key."""
    ca_file: str | None = None
    """PEM bundle to trust for https; None trusts the system's."""
    vocab_size: int | None = Field(default=None, ge=1)
    """Rows of the embedding; None reads it from the server's model folder."""
    connect_timeout_s: float = Field(default=10.0, gt=0)
    """Until the server has accepted a connection."""
    first_token_timeout_s: float = Field(default=600.0, gt=0)
    """From sending a request to its first token: queueing and prefill."""
    silence_timeout_s: float = Field(default=120.0, gt=0)
    """Until a stream that has begun and sends nothing counts as dead."""


class SamplingConfig(Section):
    """How one turn is sampled; the names are SGLang's."""

    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    """-1 keeps the whole vocabulary."""
    max_new_tokens: int = Field(default=2048, ge=1)
    """Budget of one turn, in tokens."""
    stop: StrList = ()
    stop_token_ids: Annotated[tuple[int, ...], Strict(strict=False)] = ()
    seed: int | None = None
    """`sampling_seed`, where the engine samples deterministically."""

    def params(self) -> SamplingParams:
        """Give the same values as the record that engines take."""
        return SamplingParams(**self.model_dump())


def _named(name: str) -> dict[str, Any]:
    return {"name": name}


DEFAULT_PROVIDERS = {
    "agent": "action_level_minisweagent",
    "environment": "local",
    "runtime": "swe",
}
"""The provider that a section of `flow` means when it gives keys and no `name`."""


def with_default_name(section: str, value: Any) -> Any:
    """Give a section of `flow` its default provider where it is a mapping that names none."""
    return {"name": DEFAULT_PROVIDERS[section], **value} if isinstance(value, dict) else value


class RolloutConfig(Section):
    """How many episodes run, and by which executor."""

    enable_action_level_scheduling: bool = False
    """Schedule generations and commands one by one (AgenticExecutor, and the action-level twins of
    the flow `swe` and the agent `minisweagent`), instead of whole trajectories (NaiveExecutor)."""
    max_concurrency: int = Field(default=4, ge=1)
    """Episodes that are live at once. Several servers share this and the other limits out."""
    partial_rollout: bool = True
    """An episode that a weight update interrupts goes on with its tokens; false: it starts anew."""
    max_attempts: int = Field(default=32, ge=1)
    """Times that one episode may be begun; then it ends without counting."""
    gen_concurrency: int | None = Field(default=None, ge=1)
    """Generations at once; None: as many as episodes. This and all below are for action-level
    scheduling alone."""
    async_factor: float = Field(default=1.25, ge=1.0, le=1.5)
    """So many times max_concurrency may have an environment, so that starts are hidden."""
    start_concurrency: int = Field(default=8, ge=1)
    """Environments that start at once."""
    env_concurrency: int | None = Field(default=None, ge=1)
    """Commands that run at once; None: as many as episodes."""
    reward_concurrency: int = Field(default=4, ge=1)
    """Episodes that are judged at once, each in an environment of its own."""
    policy: dict[str, Any] = Field(default_factory=lambda: _named("fcfs"))
    """Who goes first: `name`, built in or `package.module:Class`, and that policy's own keys."""
    preemption: bool = False
    """Whether a high-priority episode may interrupt a low-priority generation; for policies that
    call some high."""
    max_preemptions: int = Field(default=2, ge=0)
    """Of one episode."""
    age_s: float | None = Field(default=None, gt=0)
    """An episode that has waited so long for a generation goes first; None: the policy decides
    (fcfs serves all in the order in which they come to wait, the others after two minutes)."""
    prefill_together: float = Field(default=1 / 16, ge=0.0, le=0.5)
    """Share of gen_concurrency that waits to be free before it is filled, while more episodes wait:
    every prefill stops all decoding, so that one for several costs less. 0: fill each at once."""
    kv_share: float | None = Field(default=0.85, gt=0.0, le=1.0)
    """Share of the engine's KV memory that the contexts of live episodes may take; others wait, and
    the newest give theirs up between two turns where all have outgrown it. None: no limit."""
    submit_ahead: float = Field(default=0.0, ge=0.0, le=0.1)
    """Share of gen_concurrency sent beyond it, to hide the round trip to a server with a queue."""
    status_s: float = Field(default=30.0, gt=0)
    """Between two status lines in the log."""
    stall_s: float = Field(default=7200.0, gt=0)
    """The run fails, naming who stands still, when nothing has happened for so long; however it is
    scheduled."""
    rehearse_syncs_s: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Rehearse a weight update about every so many seconds, seeded, in all modes; the weights stay
    as they are. None: never."""
    journal: bool = False
    """Keep in the run directory what a killed run needs to go on (`agentflow run --resume DIR`)."""
    stop_grace_s: float = Field(default=20.0, ge=0)
    """After Ctrl-C, how long episodes may take to let go of their environments."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        gens, live = self.gen_concurrency, self.max_concurrency
        if gens is not None and gens > live:
            raise ValueError(
                f"gen_concurrency {gens} is more than max_concurrency {live}: every generation"
                " belongs to a live episode"
            )
        return self


class GroupsConfig(Section):
    """How groups come to a trainer that holds a RolloutBackend; `agentflow run` waits for all."""

    buffer: int | None = Field(default=None, ge=1)
    """Groups that may be begun or complete while the trainer takes none; then no further one is
    begun. None: no limit."""
    straggler: Literal["wait", "close", "refill"] = "wait"
    """At the deadline: `wait` on; `close` the group, with masked stand-ins for members that have
    not ended; `refill` it, with other episodes instead. Cutting stragglers biases lengths."""
    refills: int = Field(default=2, ge=1)
    """Deadlines at which a group is refilled; at the next one it is closed."""
    deadline_s: float | None = Field(default=None, gt=0)
    """From the beginning of a group's first episode; needed for `close` and `refill`."""
    staleness: int | None = Field(default=None, ge=0)
    """Versions that the oldest generated token of a sample may be behind the trainer's: older
    samples are replaced by stand-ins, interrupted episodes start anew. None: no limit."""
    retries: int = Field(default=2, ge=0)
    """Failures of one kind, not the policy's, that a prompt may have and be tried again."""
    dead_in_a_row: int | None = Field(default=8, ge=1)
    """Groups without a usable sample are dropped; so many in a row end the work. None: they are
    delivered like others."""

    @model_validator(mode="after")
    def _has_a_deadline(self) -> Self:
        if self.straggler != "wait" and self.deadline_s is None:
            raise ValueError(f"straggler {self.straggler!r} needs deadline_s, in seconds")
        return self


class ObserveConfig(Section):
    """What of a run that is kept in a directory can be seen from outside, beside its events."""

    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """Serve Prometheus metrics at this port; 0 takes any free one, which `agentflow status` tells.
    None: serve none."""
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    """Address to serve them at; the default is this machine alone."""
    metrics_s: float = Field(default=10.0, gt=0)
    """Between two lines of metrics.jsonl, and between two looks for a stall."""
    trace_events: int = Field(default=500_000, ge=0)
    """Slices and counter values of trace.json, the newest; 0: write none."""


class FlowConfig(Section):
    """The flow, and the providers it is put together from."""

    name: str = "swe"
    """A built-in flow, or `package.module:function`, or `path/file.py:function`."""
    python_path: StrList = ()
    """Folders in which your own flow and providers are looked for, before all others."""
    agent: dict[str, Any] = Field(default_factory=lambda: _named(DEFAULT_PROVIDERS["agent"]))
    """`name`, and that agent's own keys. `action_level_minisweagent` is driven action by action and
    its trajectory written after each; `minisweagent` runs whole and its trajectory is written at
    the end of the episode."""
    environment: dict[str, Any] = Field(
        default_factory=lambda: _named(DEFAULT_PROVIDERS["environment"])
    )
    """`name`, and that environment's own keys."""
    runtime: dict[str, Any] = Field(default_factory=lambda: _named(DEFAULT_PROVIDERS["runtime"]))
    """`name`, and that runtime's own keys."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Free keys for a flow of your own; the built-in ones take none."""

    @field_validator(*DEFAULT_PROVIDERS, mode="before")
    @classmethod
    def _names_a_provider(cls, value: Any, info: ValidationInfo) -> Any:
        assert info.field_name is not None
        return with_default_name(info.field_name, value)


class AgentflowConfig(Section):
    """A whole configuration file."""

    run: RunConfig = RunConfig()
    tasks: TasksConfig = TasksConfig()
    engine: EngineConfig = EngineConfig()
    sampling: SamplingConfig = SamplingConfig()
    rollout: RolloutConfig = RolloutConfig()
    groups: GroupsConfig = GroupsConfig()
    observe: ObserveConfig = ObserveConfig()
    flow: FlowConfig = FlowConfig()
