"""StoppingCriteria, and the cascades that settle how a sample is generated.

    data set's own (`metadata["_dataset_cfg"]`)  ▶  the command line  ▶  the spec's default

Each value is settled for itself: the first level that says something wins.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.types import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Mapping

DATASET_CFG = "_dataset_cfg"
"""Key of a sample's metadata under which MultiDataSource puts its data set's own values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoppingCriteria:
    """When an episode is ended from outside; None leaves it to the next level, or open."""

    max_turns: int | None = None
    max_context_len: int | None = None
    """Tokens of prompt and answer together."""
    timeout_s: float | None = None
    """Seconds that one attempt may run; with its judging, where the handler does not part them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for limits that leave nothing."""
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and not value > 0:
                raise ConfigError(f"{field.name} is {value!r}; it must be above 0, or left out")

    def over(self, default: StoppingCriteria) -> StoppingCriteria:
        """Fill what is None from `default`."""
        return StoppingCriteria(
            max_turns=_first(self.max_turns, default.max_turns),
            max_context_len=_first(self.max_context_len, default.max_context_len),
            timeout_s=_first(self.timeout_s, default.timeout_s),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOverrides:
    """Values of SamplingParams that a level sets; None leaves them to the next one."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_new_tokens: int | None = None

    def over(self, base: SamplingParams) -> SamplingParams:
        """Lay what is set over `base`."""
        return SamplingParams(
            temperature=_first(self.temperature, base.temperature),
            top_p=_first(self.top_p, base.top_p),
            top_k=_first(self.top_k, base.top_k),
            max_new_tokens=_first(self.max_new_tokens, base.max_new_tokens),
            stop=base.stop,
            stop_token_ids=base.stop_token_ids,
            seed=base.seed,
        )


STOPPING_KEYS = tuple(field.name for field in fields(StoppingCriteria))
SAMPLING_KEYS = tuple(field.name for field in fields(SamplingOverrides))


def dataset_stopping(metadata: Mapping[str, Any]) -> StoppingCriteria:
    """Read the data set's own stopping criteria off a sample's metadata."""
    cfg = metadata.get(DATASET_CFG) or {}
    return StoppingCriteria(**{key: cfg[key] for key in STOPPING_KEYS if key in cfg})


def dataset_sampling(metadata: Mapping[str, Any]) -> SamplingOverrides:
    """Read the data set's own sampling off a sample's metadata."""
    cfg = metadata.get(DATASET_CFG) or {}
    return SamplingOverrides(**{key: cfg[key] for key in SAMPLING_KEYS if key in cfg})


def _first(value: Any, default: Any) -> Any:
    return default if value is None else value
