"""Section 4: the specs of the recipes, with the text's own values."""

from __future__ import annotations

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from executors.task_scheduler import Resource, SchedulerArgs, StoppingCriteria
from executors.task_scheduler.recipes import scaffold_spec, swe_dagger_spec


def test_the_swe_dagger_spec_has_the_texts_values() -> None:
    """Its concurrency comes from the variable, 4 without it."""
    spec = swe_dagger_spec(parts.Handler(), SchedulerArgs(), environ={})
    assert spec.evaluator_id == "swe"
    assert spec.resource == Resource(gpu=0, concurrency=4, cpu=96, memory_gb=320)
    assert spec.sample_resource == Resource(gpu=0, concurrency=1, cpu=4, memory_gb=16)
    assert spec.batch_size == 1
    assert spec.default_stopping == StoppingCriteria(max_turns=100, max_context_len=65536)
    environ = {"STACX_DAGGER_ENV_CONCURRENCY": "9"}
    spec = swe_dagger_spec(parts.Handler(), SchedulerArgs(), environ=environ)
    assert spec.resource.concurrency == 9
    assert spec.budget_tokens == 9


def test_an_installed_scaffold_takes_the_flag() -> None:
    """`--evaluator-concurrency`, and not the variable."""
    args = SchedulerArgs(evaluator_concurrency=7, evaluator_batch_size=3)
    spec = scaffold_spec(parts.Handler(), args)
    assert (spec.resource.concurrency, spec.batch_size) == (7, 3)


@pytest.mark.parametrize("bad", ["0", "-1", "x"])
def test_a_concurrency_that_is_none_is_named(bad: str) -> None:
    """Name and value."""
    environ = {"STACX_DAGGER_ENV_CONCURRENCY": bad}
    with pytest.raises(ConfigError, match=f"STACX_DAGGER_ENV_CONCURRENCY is '{bad}'"):
        swe_dagger_spec(parts.Handler(), SchedulerArgs(), environ=environ)
