"""What both executors do to a sample before and after it is rolled out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentflow.aio import boundary
from agentflow.errors import PreprocessFailed
from agentflow.outcomes import make_fallback

if TYPE_CHECKING:
    from agentflow.engine.renderer import ChatRenderer
    from agentflow.types import RolloutSample


def pre_process(sample: RolloutSample, renderer: ChatRenderer) -> None:
    """Tokenise a validation prompt that came as messages; copy ids into `prompts`.

    Raises PreprocessFailed.
    """
    with boundary(PreprocessFailed):
        if sample.validate and not len(sample.raw_prompt_ids) and sample.raw_prompt:
            ids = renderer.opening(sample.raw_prompt)
            sample.raw_prompt_ids = np.array(ids, np.int32)
    sample.prompts = sample.raw_prompt_ids


def post_process(sample: RolloutSample) -> None:
    """See that a sample that has ended says why and has the shape that trainers accept."""
    assert sample.ending is not None, f"{sample.episode} ended without saying why"
    sample.partial_agent_data = None
    if not len(sample.responses):
        make_fallback(sample, sample.ending)
