"""DecodeRun: the time of a run of decode steps, in closed form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agentflow.sim.engine_spec import EngineTimings

_TIE_S = 1e-12
"""Two moments closer than this are one: far below a step, far above rounding of a day."""


@dataclass(slots=True, kw_only=True)
class DecodeRun:
    """A run of decode steps of one batch, whose steps grow by `c·B` as contexts grow."""

    start: float
    """When the first step began, in seconds."""
    batch: int
    context: int
    """Tokens that the first step reads."""
    steps: int
    """How many steps will be made, unless the run is cut."""
    timings: EngineTimings

    def duration(self, steps: int) -> float:
        """Seconds of the first `steps` steps, in closed form."""
        first = self.timings.decode_s(self.batch, self.context)
        growth = self.timings.c * self.batch
        return steps * first + growth * steps * (steps - 1) / 2

    def reads(self, steps: int) -> int:
        """Tokens that the first `steps` steps read."""
        return steps * self.context + self.batch * steps * (steps - 1) // 2

    @property
    def end(self) -> float:
        """When the last step ends."""
        return self.start + self.duration(self.steps)

    def done_at(self, now: float) -> int:
        """How many steps have ended by `now`."""
        elapsed = now - self.start + _TIE_S
        steps = min(self._guess(elapsed), self.steps)
        while steps < self.steps and self.duration(steps + 1) <= elapsed:
            steps += 1
        while steps and self.duration(steps) > elapsed:
            steps -= 1
        return steps

    def cut(self, now: float) -> None:
        """End the run with the step that is under way at `now`."""
        done = self.done_at(now)
        reached = done and self.duration(done) >= now - self.start - _TIE_S
        self.steps = min(self.steps, done if reached else done + 1)

    def _guess(self, elapsed: float) -> int:
        """Solve `duration(steps) = elapsed` over the reals; rounding is repaired by the caller."""
        if elapsed <= 0:
            return 0
        half = self.timings.c * self.batch / 2
        linear = self.timings.decode_s(self.batch, self.context) - half
        return int(2 * elapsed / (linear + math.sqrt(linear * linear + 4 * half * elapsed)))
