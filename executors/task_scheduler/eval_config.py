"""The section `eval` of a configuration file: data sets, copies, resources."""

from __future__ import annotations

from typing import Any, Final

from pydantic import Field

from agentflow.config import AgentflowConfig, Section, StrList
from executors.task_scheduler.args import SchedulerArgs
from executors.task_scheduler.resource import Resource
from executors.task_scheduler.stopping import SAMPLING_KEYS, STOPPING_KEYS, StoppingCriteria

_ANY: Final = 10**9
"""More than any node has."""


class AmountsConfig(Section):
    """An amount of each thing that can run out."""

    gpu: float = Field(default=0.0, ge=0)
    cpu: float = Field(default=0.0, ge=0)
    memory_gb: float = Field(default=0.0, ge=0)

    def resource(self, *, concurrency: int = 1) -> Resource:
        """Give the same as a demand."""
        return Resource(concurrency=concurrency, **self.model_dump())


class StoppingConfig(Section):
    """When an episode is ended from outside."""

    max_turns: int | None = Field(default=None, ge=1)
    max_context_len: int | None = Field(default=None, ge=1)
    """Tokens of prompt and answers together."""
    timeout_s: float | None = Field(default=None, gt=0)


class EvalDatasetConfig(StoppingConfig):
    """One data set; what it says of stopping and sampling wins over everything else."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")
    """Stands in metrics and file names."""
    source: str = Field(min_length=1)
    """`bundled`, `pypi`, or a file of SWE-bench rows (JSON or JSON lines)."""
    only: StrList = ()
    """These instance ids alone."""
    limit: int | None = Field(default=None, ge=1)
    n_samples: int | None = Field(default=None, ge=1)
    """Copies of each prompt; else `eval.n_samples`."""
    temperature: float | None = Field(default=None, ge=0)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: int | None = Field(default=None, ge=-1)
    max_new_tokens: int | None = Field(default=None, ge=1)

    def overrides(self) -> dict[str, Any]:
        """Give its own stopping criteria and sampling, where it has any."""
        values = self.model_dump(include={*STOPPING_KEYS, *SAMPLING_KEYS})
        return {name: value for name, value in values.items() if value is not None}


class EvalSection(Section):
    """How an evaluation runs."""

    datasets: tuple[EvalDatasetConfig, ...] = Field(default=(), strict=False)
    n_samples: int = Field(default=1, ge=1)
    """Copies of each prompt."""
    concurrency: int = Field(default=4, ge=1)
    """Samples that one evaluator runs at a time; each batch has its own. Ungated there is one."""
    batch_size: int | None = Field(default=1, ge=1)
    """Samples admitted together, where there is a layout; null admits all at once."""
    budget: AmountsConfig | None = None
    """Of one evaluator; null leaves it to `concurrency`."""
    run: AmountsConfig = AmountsConfig()
    """Of one sample while it runs."""
    judge: AmountsConfig = AmountsConfig()
    """Of one sample while it is judged."""
    stopping: StoppingConfig = StoppingConfig()
    """For data sets that do not say."""
    cluster_layout: dict[str, Any] | str | None = None
    """Nodes and what they have, or a JSON file of it; null starts everything ungated."""
    num_cpus: float = Field(default=96.0, ge=0)
    """Cores of a node that does not say."""
    memory_gb: float = Field(default=384.0, ge=0)
    """Memory of a node that does not say."""

    def batch(self) -> Resource:
        """Give the budget of one evaluator."""
        if self.budget is not None:
            return self.budget.resource(concurrency=self.concurrency)
        return Resource(concurrency=self.concurrency, gpu=_ANY, cpu=_ANY, memory_gb=_ANY)

    def default_stopping(self) -> StoppingCriteria:
        """Give the stopping criteria of data sets that have none."""
        return StoppingCriteria(**self.stopping.model_dump())


class EvalConfig(AgentflowConfig):
    """A whole configuration file, with a section `eval`."""

    eval: EvalSection = EvalSection()

    def args(self) -> SchedulerArgs:
        """Give the flags that the scheduler takes."""
        sampling = self.sampling
        return SchedulerArgs(
            n_samples_per_eval_prompt=self.eval.n_samples,
            rollout_temperature=sampling.temperature,
            rollout_top_p=sampling.top_p,
            rollout_top_k=sampling.top_k,
            rollout_max_response_len=sampling.max_new_tokens,
            save=self.run.out,
            save_eval_details=True,
        )
