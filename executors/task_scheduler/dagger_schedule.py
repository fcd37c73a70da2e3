"""DAggerSchedule: how often the teacher answers, and how long the tail is, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

from agentflow.errors import ConfigError


class Decay(StrEnum):
    """How β falls from its first value to its last."""

    LINEAR = "linear"
    COSINE = "cosine"
    EXPONENTIAL = "exponential"
    STEP = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class DAggerSchedule:
    """β and T_max as functions of the rollout index alone."""

    decay: Decay = Decay.LINEAR
    beta_start: float = 1.0
    beta_end: float = 0.0
    """β never falls below it."""
    decay_steps: int = 100
    """Rollouts over which `linear` and `cosine` fall."""
    rate: float = 0.9
    """Factor of one rollout (`exponential`) or of one stair (`step`)."""
    step_every: int = 10
    """Rollouts of one stair (`step`)."""
    t_max_start: int = 0
    t_max_step: int = 0
    """Turns that T_max grows by each rollout; 0 leaves T_max alone."""
    t_max_end: int | None = None
    """T_max never grows above it."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a schedule that cannot be."""
        if not 0 <= self.beta_end <= self.beta_start <= 1:
            raise ConfigError(
                f"DAggerSchedule: beta_start {self.beta_start} and beta_end {self.beta_end} must"
                " hold 0 <= beta_end <= beta_start <= 1"
            )
        if self.decay_steps < 1 or self.step_every < 1:
            raise ConfigError(
                f"DAggerSchedule: decay_steps {self.decay_steps} and step_every {self.step_every}"
                " must be at least 1"
            )
        if not 0 < self.rate <= 1:
            raise ConfigError(f"DAggerSchedule: rate is {self.rate}; it must be above 0, up to 1")
        if self.t_max_step < 0 or self.t_max_start < 0:
            raise ConfigError(
                f"DAggerSchedule: t_max_start {self.t_max_start} and t_max_step"
                f" {self.t_max_step} must not be negative"
            )
        if self.t_max_end is not None and self.t_max_end < self.t_max_start:
            raise ConfigError(
                f"DAggerSchedule: t_max_end is {self.t_max_end}; it must be at least t_max_start,"
                f" {self.t_max_start}"
            )

    def beta(self, rollout_id: int) -> float:
        """Probability of the teacher in rollout `rollout_id`, counted from 0."""
        return min(self.beta_start, max(self.beta_end, self._decayed(rollout_id)))

    def _decayed(self, rollout_id: int) -> float:
        fall = self.beta_start - self.beta_end
        done = min(rollout_id / self.decay_steps, 1.0)
        match self.decay:
            case Decay.LINEAR:
                return self.beta_start - fall * done
            case Decay.COSINE:
                return self.beta_end + fall * (1 + math.cos(math.pi * done)) / 2
            case Decay.EXPONENTIAL:
                return self.beta_start * self.rate**rollout_id
            case Decay.STEP:
                stairs = rollout_id // self.step_every
                return self.beta_start * self.rate**stairs
            case other:
                assert_never(other)

    def t_max(self, rollout_id: int) -> int:
        """Tail length in rollout `rollout_id`: a straight ramp, up to `t_max_end`."""
        ramp = self.t_max_start + self.t_max_step * rollout_id
        return ramp if self.t_max_end is None else min(ramp, self.t_max_end)
