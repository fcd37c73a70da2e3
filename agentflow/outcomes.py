"""How a trainer's sample is filled in when an episode did not end by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from agentflow.engine.token_record import NO_VERSION

if TYPE_CHECKING:
    from agentflow.swe.sample import SWESample
    from agentflow.types import Ending, RolloutSample


def save_partial(sample: SWESample, dc_sample: RolloutSample) -> None:
    """Keep an interrupted episode's state in the trainer's sample, for its next attempt."""
    dc_sample.partial_agent_data = sample
    dc_sample.attempt += 1


def write_off(sample: SWESample, dc_sample: RolloutSample) -> None:
    """Count the tokens of an attempt that is thrown away as restarted."""
    lost = sample.record.generated + (sample.model.lost_tokens if sample.model is not None else 0)
    dc_sample.restarted_tokens += lost
    dc_sample.stale_tokens += lost * dc_sample.restart
    dc_sample.partial_agent_data = None
    dc_sample.restart = False


def make_fallback(sample: RolloutSample, ending: Ending) -> None:
    """Fill `sample` with the smallest shape that trainers accept, and keep it out of training.

    One prompt token (the real prompt, where there is one) and one response token with mask 0:
    no gradient, and no place in its group's mean and deviation. Identity and prompt stay.
    """
    sample.ending = ending
    sample.remove_sample = True
    sample.rewards = 0.0
    prompt = sample.raw_prompt_ids
    sample.prompts = prompt if len(prompt) else np.zeros(1, np.int32)
    sample.responses = np.zeros(1, np.int32)
    sample.response_mask = np.zeros(1, np.int8)
    sample.rollout_log_prob = np.zeros(1, np.float32)
    sample.weight_versions = np.full(1, NO_VERSION, np.int32)
