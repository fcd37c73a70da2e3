"""slime's rollout function over agentflow, and the reward normalisation that goes with it.

    --rollout-function-path executors.trainers.slime.generate_rollout
    --custom-reward-post-process-path executors.trainers.slime.post_process_rewards
    --custom-config-path slime.yaml      # with a line `agentflow: agentflow.yaml`

Written for slime 0.3.1 (`slime/rollout/base_types.py`, `slime/rollout/sglang_rollout.py`,
`slime/ray/rollout.py`). Its types are looked up when a function is called, so that importing this
needs neither slime nor torch.

Owns how slime's samples travel through a RolloutBackend and back. Groups always have
n_samples_per_prompt members: with unequal groups slime would normalise over the whole batch. What
the infrastructure failed stays in its group as a masked sample, and `post_process_rewards` keeps it
out of mean and deviation.
"""

from __future__ import annotations

import atexit
import importlib
import math
import weakref
from statistics import fmean
from typing import TYPE_CHECKING, Any

from agentflow.errors import AgentflowError
from executors.backend import RolloutBackend
from executors.trainers.slime_samples import (
    check_args,
    fill,
    give_up,
    make_prompt,
    read_rows,
    sampling_of,
    slime_config,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from agentflow.types import SamplingParams

_NORMALISED = ("grpo", "gspo", "cispo", "reinforce_plus_plus_baseline")
_DIVIDED = ("grpo", "gspo", "cispo")
_EPSILON = 1e-6
"""All three as slime has them."""

_HELD: weakref.WeakKeyDictionary[Any, SlimeRollouts] = weakref.WeakKeyDictionary()
"""slime calls a function and keeps its data source: the rollouts live as long as that."""


def generate_rollout(args: Any, rollout_id: int, data_source: Any, evaluation: bool = False) -> Any:  # noqa: FBT001, FBT002  # slime's signature
    """Roll out a training batch, or evaluate; returns slime's RolloutFnTrainOutput / EvalOutput.

    The first call starts the backend. Raises ConfigError, BackendFailed, DeadGroups.
    """
    rollouts = _HELD.get(data_source)
    if rollouts is None:
        rollouts = _HELD[data_source] = SlimeRollouts(args)
    if evaluation:
        return rollouts.evaluate()
    return rollouts.train(rollout_id, data_source)


class SlimeRollouts:
    """A RolloutBackend as slime uses it."""

    def __init__(self, args: Any, *, backend: RolloutBackend | None = None) -> None:
        """Start `backend`, by default the one that `args.agentflow` configures.

        Raises ConfigError.
        """
        check_args(args)
        self._args = args
        self._rollouts = (backend or RolloutBackend(slime_config(args))).sync()
        self._known = {str(row["instance_id"]): row for row in self._rollouts.tasks}
        self._rollouts.start()
        atexit.register(self.close)

    def close(self) -> None:
        """End what runs and remove every environment. Idempotent."""
        self._rollouts.close()
        atexit.unregister(self.close)

    # --- training -----------------------------------------------------------------------------

    def train(self, rollout_id: int, data_source: Any) -> Any:
        """Roll out `rollout_batch_size` groups; what is begun beyond that goes back, aborted."""
        wanted, ask = self._args.rollout_batch_size, self._args.over_sampling_batch_size
        done: list[list[Any]] = []
        unused: list[list[Any]] = []
        dead = 0
        while (missing := wanted - len(done)) > 0:
            batch = data_source.get_samples(missing if done else max(ask or 0, missing))
            if not batch:
                raise AgentflowError(f"the data source is empty; {missing} groups are missing")
            enough = min(missing, len(batch))
            came = self._step(batch, enough=enough, rollout_id=rollout_id)
            done += [batch[number] for number in came]
            left = [group for number, group in enumerate(batch) if number not in came]
            if len(came) < enough:  # none was cut short: those that are missing are dead
                dead += len(left)
            else:
                unused += left
        if unused:
            self._give_back(unused, rollout_id, data_source)
        done.sort(key=lambda group: int(group[0].index))
        metrics = _metrics(done, unused=len(unused), dead=dead)
        types = importlib.import_module("slime.rollout.base_types")
        return types.RolloutFnTrainOutput(samples=done, metrics=metrics)

    def _step(self, batch: Sequence[list[Any]], *, enough: int, rollout_id: int) -> set[int]:
        """Roll out groups until enough are complete; fills those in and returns their numbers."""
        size, sampling = self._args.n_samples_per_prompt, sampling_of(self._args)
        for group in batch:
            if len(group) != size:
                raise AgentflowError(
                    f"group {group[0].group_index} has {len(group)} samples, not {size}, which is"
                    " n_samples_per_prompt"
                )
        prompts = self._prompts(batch, sampling)
        came = set[int]()
        for ended in self._rollouts.step(prompts, n=size, enough=enough):
            number = ended[0].metadata["slime"]
            came.add(number)
            for sample, done in zip(batch[number], ended, strict=True):
                fill(sample, done, rollout_id=rollout_id)
            self._rollouts.ack(ended)
        return came

    def _prompts(self, batch: Iterable[Sequence[Any]], sampling: SamplingParams) -> list[Any]:
        return [
            make_prompt(group[0], number=number, known=self._known, sampling=sampling)
            for number, group in enumerate(batch)
        ]

    def _give_back(self, unused: list[list[Any]], rollout_id: int, data_source: Any) -> None:
        """Return groups that were cut short, once no generation of theirs runs any more."""
        self._rollouts.pause("abort")  # slime may replace the weights, or the engines, after this
        self._rollouts.resume()
        for group in unused:
            give_up(group, rollout_id=rollout_id)
        data_source.add_samples(unused)

    # --- evaluating ---------------------------------------------------------------------------

    def evaluate(self) -> Any:
        """Roll out every data set of `args.eval_datasets`."""
        data, metrics = {}, {}
        for dataset in self._args.eval_datasets or ():
            samples = self._evaluated(dataset)
            masked = sum(sample.remove_sample for sample in samples)
            metrics[f"eval/{dataset.name}/masked"] = masked
            if masked < len(samples) and not getattr(self._args, "log_passrate", False):
                samples = [sample for sample in samples if not sample.remove_sample]
            data[dataset.name] = {
                "rewards": [sample.reward for sample in samples],
                "truncated": [s.status == type(s).Status.TRUNCATED for s in samples],
                "samples": samples,
            }
        types = importlib.import_module("slime.rollout.base_types")
        return types.RolloutFnEvalOutput(data=data, metrics=metrics)

    def _evaluated(self, dataset: Any) -> list[Any]:
        make = importlib.import_module("slime.utils.types").Sample
        rows = read_rows(dataset.path, dataset.metadata_key or self._args.metadata_key)
        size = dataset.n_samples_per_eval_prompt or self._args.n_samples_per_eval_prompt
        batch = [
            [
                make(index=number * size + i, group_index=number, metadata=dict(row))
                for i in range(size)
            ]
            for number, row in enumerate(rows)
        ]
        prompts = self._prompts(batch, sampling_of(self._args, dataset))
        for ended in self._rollouts.validate(prompts, n=size):
            for sample, done in zip(batch[ended[0].metadata["slime"]], ended, strict=True):
                fill(sample, done, rollout_id=-1)
        return [sample for group in batch for sample in group if sample.tokens]


def _metrics(done: Sequence[Sequence[Any]], *, unused: int, dead: int) -> dict[str, float]:
    samples = [sample for group in done for sample in group]
    return {
        "rollout/agentflow/masked": sum(sample.remove_sample for sample in samples),
        "rollout/agentflow/turns": fmean(s.metadata["agentflow"]["turns"] for s in samples),
        "rollout/agentflow/unused_groups": unused,
        "rollout/agentflow/dead_groups": dead,
    }


# --- rewards ----------------------------------------------------------------------------------


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Give raw and normalised rewards, as slime would, with masked samples out of every group.

    Mean and deviation (of a sample, as torch has it) are those of the members that count; a masked
    one gets 0.0. Groups go by `group_index`, whatever their size.
    """
    raw = [float(sample.get_reward_value(args)) for sample in samples]
    if args.advantage_estimator not in _NORMALISED or not args.rewards_normalization:
        return raw, raw
    groups: dict[Any, list[int]] = {}
    for place, sample in enumerate(samples):
        if not sample.remove_sample:
            groups.setdefault(sample.group_index, []).append(place)
    divide = args.advantage_estimator in _DIVIDED and args.grpo_std_normalization
    rewards = [0.0] * len(samples)
    for places in groups.values():
        mean = fmean(raw[place] for place in places)
        squares = math.fsum((raw[place] - mean) ** 2 for place in places)
        scale = math.sqrt(squares / max(len(places) - 1, 1)) + _EPSILON if divide else 1.0
        for place in places:
            rewards[place] = (raw[place] - mean) / scale
    return raw, rewards
