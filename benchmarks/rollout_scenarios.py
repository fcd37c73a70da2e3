"""The scenarios of `benchmarks.rollout`: what is rolled out on which machine.

Engines are Qwen3-32B on four H200 (fitted kernel timings). Workloads are drawn by the seed from
published distributions (`agentflow/sim/data/workloads.json`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentflow.sim.clock import VirtualRunner
from agentflow.sim.environment import EnvLimits
from agentflow.sim.setup import SimulationConfig, engine_spec
from agentflow.sim.workload import load_workload

if TYPE_CHECKING:
    from agentflow.sim.trace import EpisodeTrace

ENGINE = "qwen3-32b-h200-tp4"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One situation."""

    about: str
    workload: str = "reference"
    groups: int = 32
    group_size: int = 8
    slots: int = 64
    """Generations at once on one replica, G."""
    replicas: int = 1
    containers: int = 256
    """Environments at once, C."""
    kv_tokens: int | None = None
    """KV memory of one replica; None is unlimited."""
    sync_at_s: float | None = None
    """When weights are updated, aborting what generates."""
    update_s: float = 0.0
    """Seconds that an update takes."""
    stream: int | None = None
    """Groups in flight; the next is issued when one completes. None: all at once."""
    sync_every: int | None = None
    """Groups completed between two updates in place."""
    seeds: int = 1
    """Figures are means over so many, where no other number is asked for."""

    def traces(self, seed: int) -> list[EpisodeTrace]:
        """Draw the episodes."""
        return load_workload(self.workload).episodes(
            groups=self.groups,
            group_size=self.group_size,
            random_for=VirtualRunner(seed=seed).random,
        )

    def names(self, seed: int) -> dict[str, str]:
        """Return episodes by their keys in request ids."""
        return {trace.episode.key: str(trace.episode) for trace in self.traces(seed)}

    def config(self, seed: int) -> SimulationConfig:
        """Describe the machine."""
        workload = load_workload(self.workload)
        engine = engine_spec(
            ENGINE, slots=self.slots, kv_tokens=self.kv_tokens, context=workload.context_cap
        )
        return SimulationConfig(
            engine=replace(engine, update_s=self.update_s),
            replicas=self.replicas,
            limits=EnvLimits(containers=self.containers, start_growth=workload.start_growth),
            seed=seed,
            digest_events=False,
        )


SCENARIOS = {
    "throughput_bound": Scenario(about="256 episodes, 256 containers", seeds=5),
    "container_capped": Scenario(
        about="128 containers, half as many as episodes", containers=128, seeds=5
    ),
    "slow_env": Scenario(about="commands of 20 s in the mean", workload="slow-env", seeds=5),
    "kv_pressed": Scenario(
        about="live contexts three times KV memory", groups=24, containers=192, kv_tokens=1_600_000
    ),
    "long_tail": Scenario(
        about="heavy-tailed turns and commands", workload="long-tail", groups=16, containers=128
    ),
    "replicas": Scenario(
        about="four engines of 16 slots", groups=16, slots=16, replicas=4, containers=96
    ),
    "weight_sync": Scenario(
        about="an update that aborts, in mid-step", groups=16, sync_at_s=600.0, update_s=20.0
    ),
    "stream": Scenario(
        about="12 groups in flight, updates in place",
        groups=24,
        stream=12,
        sync_every=4,
        update_s=5.0,
        containers=96,
    ),
}
