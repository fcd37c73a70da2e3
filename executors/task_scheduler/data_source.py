"""Where prompts come from: MultiDataSource for rollouts, EvalDataset for evaluations.

Owns the cursor of every data set and the generator that picks among them; both can be saved and
loaded, so that a run goes on without a repeated or a skipped prompt.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from agentflow.errors import ConfigError
from agentflow.registry import did_you_mean
from agentflow.types import EpisodeId, RolloutSample
from executors.task_scheduler.stopping import DATASET_CFG, SAMPLING_KEYS, STOPPING_KEYS
from executors.task_scheduler.tasks import TASK_TYPE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agentflow.protocols import Runner

DATASET: Final = "_dataset_name"
EVAL_DATASET: Final = "_eval_dataset_name"

_OVERRIDES: Final = (*STOPPING_KEYS, *SAMPLING_KEYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """Prompts of one kind, and how they are generated."""

    name: str
    rows: Sequence[Mapping[str, Any]]
    """Task rows in SWE-bench's format."""
    task_type: str | None = None
    """Its evaluator; None takes the first."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Its own stopping criteria and sampling; they win over everything else."""

    def __post_init__(self) -> None:
        """Raise ConfigError for an empty set, a prompt that is there twice, an unknown override."""
        if not self.rows:
            raise ConfigError(f"data set {self.name!r} has no rows")
        uid, often = Counter(map(self.uid, range(len(self.rows)))).most_common(1)[0]
        if often > 1:
            raise ConfigError(f"data set {self.name!r}: {uid!r} is there {often} times")
        for key in self.overrides:
            if key not in _OVERRIDES:
                raise ConfigError(
                    f"data set {self.name!r}: unknown override {key!r}"
                    f"{did_you_mean(key, _OVERRIDES)} (known: {', '.join(_OVERRIDES)})"
                )

    def uid(self, index: int) -> str:
        """Stable name of a prompt, also among the prompts of other sets."""
        return f"{self.name}/{self.rows[index].get('instance_id', index)}"

    def fingerprint(self) -> str:
        """Tell its prompts and their order."""
        uids = "\n".join(self.uid(index) for index in range(len(self.rows)))
        return f"{len(self.rows)} rows, {hashlib.sha256(uids.encode()).hexdigest()[:12]}"

    def sample(self, index: int, *, uid: str, replica_index: int) -> RolloutSample:
        """Issue one sample of the prompt at `index`."""
        metadata: dict[str, Any] = {DATASET: self.name, DATASET_CFG: dict(self.overrides)}
        if self.task_type is not None:
            metadata[TASK_TYPE] = self.task_type
        episode = EpisodeId(uid=uid, replica_index=replica_index)
        return RolloutSample(episode=episode, task=self.rows[index], metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainDataset(Dataset):
    """A data set of a mix."""

    weight: float = 1.0
    """Share of the prompts that come from it, relative to the others'."""
    seed: int = 0
    """Its order derives from it, from its name and from the run's seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalDataset(Dataset):
    """A data set to evaluate on; it is run whole."""

    n_samples: int | None = None
    """Copies of each prompt; None takes `--n-samples-per-eval-prompt`."""


def copies_of(dataset: EvalDataset, *, default: int) -> list[RolloutSample]:
    """Issue every copy of every prompt: all first copies, then all second ones."""
    copies = default if dataset.n_samples is None else dataset.n_samples
    if copies < 1:
        raise ConfigError(f"data set {dataset.name!r}: n_samples is {copies}; at least 1")
    samples = [
        dataset.sample(index, uid=dataset.uid(index), replica_index=copy)
        for copy in range(copies)
        for index in range(len(dataset.rows))
    ]
    for sample in samples:
        sample.validate = True
        sample.metadata[EVAL_DATASET] = dataset.name
    return samples


@dataclass(slots=True)
class _Cursor:
    """How far one data set is read."""

    epoch: int = 0
    position: int = 0


class MultiDataSource:
    """Mixes data sets by weight; each is read through, in an order of its own, again and again."""

    def __init__(
        self, datasets: Sequence[TrainDataset], *, n_samples_per_prompt: int, runner: Runner
    ) -> None:
        """Raises ConfigError for no set, two of one name, a bad weight or number of samples."""
        self._datasets = {dataset.name: dataset for dataset in datasets}
        if not datasets or len(self._datasets) != len(datasets):
            names = [dataset.name for dataset in datasets]
            raise ConfigError(f"data sets {names}: give at least one, each with its own name")
        for dataset in datasets:
            if not (dataset.weight > 0 and math.isfinite(dataset.weight)):
                raise ConfigError(
                    f"data set {dataset.name!r}: weight is {dataset.weight}; it must be a finite"
                    " number above 0"
                )
        if n_samples_per_prompt < 1:
            raise ConfigError(f"n_samples_per_prompt is {n_samples_per_prompt}; at least 1")
        self._n = n_samples_per_prompt
        self._runner = runner
        self._chance = runner.random("data/mix")
        self._cursors = {name: _Cursor() for name in self._datasets}
        self._orders: dict[str, tuple[int, list[int]]] = {}
        self._prints = {name: dataset.fingerprint() for name, dataset in self._datasets.items()}

    def get_samples(self, count: int) -> list[list[RolloutSample]]:
        """Give `count` groups; never fewer."""
        return [self._group() for _ in range(count)]

    def _group(self) -> list[RolloutSample]:
        weights = [dataset.weight for dataset in self._datasets.values()]
        (name,) = self._chance.choices(list(self._datasets), weights)
        dataset, cursor = self._datasets[name], self._cursors[name]
        index = self._order(dataset, cursor.epoch)[cursor.position]
        uid = dataset.uid(index)
        if cursor.epoch:
            uid = f"{uid}@{cursor.epoch}"
        cursor.position += 1
        if cursor.position == len(dataset.rows):
            cursor.epoch, cursor.position = cursor.epoch + 1, 0
        return [dataset.sample(index, uid=uid, replica_index=i) for i in range(self._n)]

    def _order(self, dataset: TrainDataset, epoch: int) -> list[int]:
        known = self._orders.get(dataset.name)
        if known is None or known[0] != epoch:
            order = list(range(len(dataset.rows)))
            self._runner.random(f"data/{dataset.name}/{dataset.seed}/{epoch}").shuffle(order)
            known = self._orders[dataset.name] = (epoch, order)
        return known[1]

    # --- checkpoint ---------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Give cursors and the generator's state, in primitives."""
        version, internal, gauss = self._chance.getstate()
        return {
            "cursors": {name: [c.epoch, c.position] for name, c in self._cursors.items()},
            "rows": dict(self._prints),
            "chance": [version, list(internal), gauss],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where the state was taken. Raises ConfigError when the data sets are others."""
        if state.get("rows") != self._prints:
            raise ConfigError(
                f"the checkpoint's data sets are {state.get('rows')} (number, and digest of the ids"
                f" in order), but these are {self._prints}; resume with the same ones, or start in"
                " another --save folder"
            )
        try:
            version, internal, gauss = state["chance"]
            cursors = {name: _Cursor(*state["cursors"][name]) for name in self._datasets}
            self._chance.setstate((version, tuple(internal), gauss))
        except (KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the data source's state is damaged: {error!r}") from error
        self._cursors = cursors
