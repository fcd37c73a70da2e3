"""sim: production code on a clock that jumps, with timed engines and environments.

    Workload, recorded run ──traces──▶ TraceAgent, TraceRuntime ──▶ flow and executor of production
                                                                          │
    VirtualLoop (time jumps) ◀── VirtualRunner                            ├──▶ SimulatedEngine
                                                                          └──▶ SimulatedEnvBuilder
    makespan ──▶ LowerBound: rho = makespan / LB ──▶ Waterfall of one engine's time
    FaultSource, Disturbances, Cancellations: seeded faults at every await

Of an engine: `engine` speaks to the loop, `engine_core` decides what is computed when, `batcher`
and `admission` who is in it, `kv_memory` and `radix` with which tokens, `decode_run` how long.
Nothing here reads a real clock, starts a thread or draws an unseeded number.
"""

from agentflow.sim.bound import (
    EpisodeWork,
    LowerBound,
    Resources,
    TurnWork,
    Waterfall,
    lower_bound,
    waterfall,
)
from agentflow.sim.clock import Deadlock, VirtualLoop, VirtualRunner, run_virtual
from agentflow.sim.engine import SimulatedEngine
from agentflow.sim.engine_spec import EngineSpec, EngineTimings, load_timings
from agentflow.sim.environment import EnvLimits, SimulatedEnvBuilder
from agentflow.sim.setup import Simulation, SimulationConfig, engine_spec
from agentflow.sim.trace import EpisodeTrace, TurnTrace
from agentflow.sim.workload import Workload, load_workload

__all__ = [
    "Deadlock",
    "EngineSpec",
    "EngineTimings",
    "EnvLimits",
    "EpisodeTrace",
    "EpisodeWork",
    "LowerBound",
    "Resources",
    "SimulatedEngine",
    "SimulatedEnvBuilder",
    "Simulation",
    "SimulationConfig",
    "TurnTrace",
    "TurnWork",
    "VirtualLoop",
    "VirtualRunner",
    "Waterfall",
    "Workload",
    "engine_spec",
    "load_timings",
    "load_workload",
    "lower_bound",
    "run_virtual",
    "waterfall",
]
