"""sim: production code on a clock that jumps, with timed engines and environments.

    Workload ──traces──▶ TraceAgent, TraceRuntime ──▶ the flow and executor of production
                              │                            │
       VirtualLoop ◀── VirtualRunner                       ├──▶ SimulatedEngine (EngineCore)
       (time jumps)                                        └──▶ SimulatedEnvBuilder
                              │
    bound.LowerBound ──▶ rho = makespan / LB, and the waterfall of one engine's time

Nothing here reads a real clock, starts a thread or draws an unseeded number.
"""
