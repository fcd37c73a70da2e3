"""What a sample needs, what a node has, and where a sample was put.

Amounts are kept as whole numbers of a billionth, so that a million acquisitions and releases of
fractions leave exactly what was there. A demand is rounded down to that: 1/7 of a GPU fits seven
times.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Final, NamedTuple

from agentflow.errors import ConfigError

ONE: Final = 10**9
"""Units in 1.0 of a GPU, a CPU or a gigabyte."""

UNBOUNDED: Final = sys.maxsize
"""How often a demand for nothing fits."""


def units(value: float, *, name: str) -> int:
    """Give `value` in exact units. Raises ConfigError for what is no amount."""
    if type(value) not in {int, float}:  # it may come from JSON; True is no amount
        raise ConfigError(f"{name} is {value!r}; it must be a number")
    amount = Decimal(repr(value))
    if not amount.is_finite() or amount < 0:
        raise ConfigError(f"{name} is {value!r}; it must be a finite number, 0 or more")
    exact = int(amount * ONE)
    if value and not exact:
        raise ConfigError(f"{name} is {value!r}; amounts below {1 / ONE:g} cannot be told from 0")
    return exact


class Amounts(NamedTuple):
    """Exact units of each thing that can run out."""

    gpu: int
    cpu: int
    memory: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """Demand: of one sample, or the budget of one evaluator."""

    gpu: float = 0.0
    """GPUs: a fraction of one, or a whole number of entire ones; 0 gates on CPU and memory."""
    concurrency: int = 1
    """Samples at a time: an evaluator's ceiling; 1 for one sample."""
    cpu: float = 0.0
    """Cores."""
    memory_gb: float = 0.0
    amounts: Amounts = field(init=False, repr=False, compare=False)
    """The same in exact units."""

    def __post_init__(self) -> None:
        """Raise ConfigError for amounts that cannot be."""
        if type(self.concurrency) is not int or self.concurrency < 1:
            raise ConfigError(
                f"Resource.concurrency is {self.concurrency}; it must be a whole number from 1"
            )
        amounts = Amounts(
            gpu=units(self.gpu, name="Resource.gpu"),
            cpu=units(self.cpu, name="Resource.cpu"),
            memory=units(self.memory_gb, name="Resource.memory_gb"),
        )
        object.__setattr__(self, "amounts", amounts)

    def peak(self, other: Resource) -> Resource:
        """Per-field maximum: what is held by work that is one or the other, never both."""
        return Resource(
            gpu=max(self.gpu, other.gpu),
            concurrency=max(self.concurrency, other.concurrency),
            cpu=max(self.cpu, other.cpu),
            memory_gb=max(self.memory_gb, other.memory_gb),
        )

    def tokens(self, per_sample: Resource) -> int:
        """How many `per_sample` this budget holds; UNBOUNDED when it asks for nothing.

        Concurrency is a part of the budget: a token that no running sample can hold is capacity
        taken from others.
        """
        have, want = self.amounts, per_sample.amounts
        fits = [h // w for h, w in zip(have, want, strict=True) if w]
        return min([*fits, self.concurrency // per_sample.concurrency])


def check_sample(resource: Resource, *, name: str) -> None:
    """Refuse a per-sample demand for one and a half GPUs: it is on no GPU and on no two."""
    if resource.gpu > 1 and not float(resource.gpu).is_integer():
        raise ConfigError(
            f"{name}.gpu is {resource.gpu}; a sample takes a fraction of one GPU, or whole GPUs"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResource:
    """Supply: what one node of the cluster brings."""

    node: str
    """Its IP or name, as in the cluster layout."""
    gpus: tuple[int, ...] = ()
    """GPU ids, each of capacity 1.0."""
    cpu: float = 0.0
    memory_gb: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One token: the right of one sample to run on one node."""

    node: str
    gpus: tuple[int, ...] = ()
    """GPU ids it may use; one, for a fraction; none, for `gpu=0`."""
    taken: Amounts
    """What to give back. With several GPUs `gpu` is the amount on all of them together."""
