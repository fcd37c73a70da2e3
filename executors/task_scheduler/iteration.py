"""IterationState: what the scheduler alone knows of the step under way, published for the others.

Agents get it as an object; loss code in other processes reads the same from environment variables.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from executors.task_scheduler.dagger_schedule import DAggerSchedule

ROLLOUT_ID: Final = "STACX_ROLLOUT_ID"
BETA: Final = "STACX_DAGGER_BETA"
EVAL_BETA: Final = "STACX_DAGGER_EVAL_BETA"
T_MAX: Final = "STACX_DAGGER_T_MAX"


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationState:
    """One step of the training loop."""

    rollout_id: int = 0
    beta: float = 0.0
    """Probability that the teacher answers a turn."""
    t_max: int | None = None
    """Tail length, in turns; None where nobody set one."""
    evaluating: bool = False


class IterationPublisher:
    """Sets the variables of each step; nobody else does."""

    def __init__(
        self,
        schedule: DAggerSchedule | None = None,
        *,
        environ: MutableMapping[str, str] | None = None,
    ) -> None:
        """`environ` is the process's own unless another is given."""
        self._schedule = schedule
        self._environ = os.environ if environ is None else environ

    def rollout(self, rollout_id: int) -> IterationState:
        """Publish a training step, before its first prompt is fetched.

        T_max is published only where the schedule ramps it (`t_max_step` > 0): a tail length that
        was set for the whole run must not be overwritten with 0.
        """
        self._environ[ROLLOUT_ID] = str(rollout_id)
        schedule = self._schedule
        if schedule is not None:
            self._environ[BETA] = repr(schedule.beta(rollout_id))
            if schedule.t_max_step > 0:
                self._environ[T_MAX] = str(schedule.t_max(rollout_id))
        return self._state(rollout_id, beta=_fraction(self._environ, BETA), evaluating=False)

    def evaluation(self, rollout_id: int) -> IterationState:
        """Publish an evaluation: the student alone, unless STACX_DAGGER_EVAL_BETA is set."""
        beta = _fraction(self._environ, EVAL_BETA)
        self._environ[ROLLOUT_ID] = str(rollout_id)
        self._environ.pop(BETA, None)
        if self._environ.get(EVAL_BETA):
            self._environ[BETA] = self._environ[EVAL_BETA]
        return self._state(rollout_id, beta=beta, evaluating=True)

    def _state(self, rollout_id: int, *, beta: float, evaluating: bool) -> IterationState:
        t_max = self._environ.get(T_MAX)
        if t_max is not None and not t_max.isdecimal():
            raise ConfigError(f"{T_MAX} is {t_max!r}; it must be a whole number of turns")
        return IterationState(
            rollout_id=rollout_id,
            beta=beta,
            t_max=None if t_max is None else int(t_max),
            evaluating=evaluating,
        )


def _fraction(environ: MutableMapping[str, str], name: str) -> float:
    text = environ.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} is {text!r}; it must be a probability, 0 to 1")
    return value
