"""SWESample: one episode as the SWE flow works on it, by concern under `sample.m`.

Lives from preprocessing to `project_to_dc_sample`. Picklable at every half-step: live parts (the
engine, the environment) are not in it; the flow holds those.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentflow.engine.token_record import TokenRecord
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from numpy.typing import NDArray

    from agentflow.engine.turns import TurnModel
    from agentflow.protocols import Agent, Runtime
    from agentflow.types import Ending, EpisodeId, Message, PartialRolloutState, SWERolloutResult


@dataclass(slots=True, kw_only=True)
class SWEData:
    """What the task is; fixed."""

    task: Mapping[str, Any]
    """The raw row: SWE-bench's fields and ours."""
    container_args: ContainerSpec = field(default_factory=ContainerSpec)
    """What environments of this episode are started with."""

    @property
    def instance_id(self) -> str:
        """SWE-bench's `instance_id`."""
        return str(self.task["instance_id"])

    @property
    def problem_statement(self) -> str:
        """The issue's text, which becomes the agent's task."""
        return str(self.task["problem_statement"])


@dataclass(slots=True, kw_only=True)
class SWERollout:
    """What has happened so far."""

    result: SWERolloutResult | None = None
    """How the agent left."""
    ending: Ending | None = None
    """Why the episode ended."""
    image: str = ""
    """What the environment was made of, by its digest; the judge's is made of the same."""
    submission: str = ""
    """What the agent printed on submitting."""
    patch: str | None = None
    """The difference to the bootstrapped repository, as `git diff` prints it."""
    verdict: dict[str, Any] | None = None
    """The judge's report: which tests passed and which did not."""
    state: PartialRolloutState | None = None
    """Where the state machine stands; what an aborted episode resumes from."""
    environment_s: float = 0.0
    """Seconds spent starting environments and running commands."""
    reward_s: float = 0.0
    """Seconds spent judging."""


@dataclass(slots=True, kw_only=True)
class SWEMeta:
    """The concerns of an episode."""

    data: SWEData
    rollout: SWERollout = field(default_factory=SWERollout)
    agent: Agent | None = None
    runtime: Runtime | None = None
    lease: Any | None = None
    """How the environment is taken back: where episodes are kept, and while one is interrupted."""


@dataclass(slots=True, kw_only=True)
class SWESample:
    """One episode: identity, tokens, reward, and everything else under `m`."""

    episode: EpisodeId
    m: SWEMeta
    model: TurnModel | None = None
    """The engine as this episode sees it; carries the rid of the attempt."""
    attempt: int = 0
    messages: list[Message] = field(default_factory=list)
    """The conversation so far, in mini-swe-agent's shape; the agent's own list."""
    record: TokenRecord = field(default_factory=TokenRecord)
    """Ids, log-probs, masks and versions, exact."""
    reward: float | None = None
    """1.0 resolved, 0.0 not; None while not judged."""
    validate: bool = False

    def add_message(self, role: str, content: str, **extra: Any) -> None:
        """Append one message to the conversation."""
        message: Message = {"role": role, "content": content}
        if extra:
            message["extra"] = extra
        self.messages.append(message)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """Response ids (the specification's name)."""
        return self.record.responses

    @property
    def loss_mask(self) -> NDArray[np.int8]:
        """1 where `tokens` was generated (the specification's name)."""
        return self.record.response_mask

    @property
    def rollout_log_probs(self) -> NDArray[np.float32]:
        """Log-probs of `tokens` (the specification's name)."""
        return self.record.rollout_log_prob
