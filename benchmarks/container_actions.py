"""What one action costs: `docker exec` through the SDK, and the session inside the container.

`python -m benchmarks.container_actions --json FILE [--rounds 5] [--live 64]`. Both run in the same
containers, with every guarantee on, in turns, so that a busy machine slows both. The gated figures
are ratios of two measurements of one round, the median over all rounds:

    p50_ratio_c1                at least 20   latency of `/bin/true` through bash, one at a time
    throughput_ratio_c16        at least 20   the same, 16 containers at once
    throughput_ratio_direct_c16 at least 40   `/bin/true` without a shell against exec's bash
    live                        64            containers that live and answer at once
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker import DockerEnv, DockerEnvBuilder
from agentflow.swe.environment.docker.errors import EngineUnavailable, ImageMissing
from agentflow.types import ContainerSpec
from benchmarks.report import output_file, positive, write_report

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

TRUE = "/bin/true"
OUTPUT = "head -c 65536 /dev/zero"
GOALS = {
    "p50_ratio_c1": 20.0,
    "throughput_ratio_c16": 20.0,
    "throughput_ratio_direct_c16": 40.0,
    "live": 64.0,
}
KILL_GOAL_MS = 20.0
"""From the deadline to the death of the tree; printed, since it is a time of this machine."""
EXEC_ACTIONS = {1: 12, 16: 32, 64: 64}
SESSION_ACTIONS = {1: 200, 16: 800, 64: 1280}
"""Actions of one round by concurrency: about two seconds for an exec, about one for a session."""
KILLS = 5
TREE = "trap '' TERM; (setsid sleep 1000 &) ; nohup sleep 1000 & (sleep 1000 & sleep 1000) & wait"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One kind of action at one concurrency, in one round."""

    p50_ms: float
    p95_ms: float
    per_s: float
    cpu_ms: float
    """CPU of the whole machine for one action; other load on the machine is in it."""


async def measure(
    envs: Sequence[DockerEnv], actions: int, act: Callable[[DockerEnv], Awaitable[None]]
) -> Measured:
    """Spread so many actions over the environments, one at a time in each."""
    taken: list[float] = []

    async def drive(env: DockerEnv) -> None:
        for _ in range(max(1, actions // len(envs))):
            began = time.perf_counter()
            await act(env)
            taken.append((time.perf_counter() - began) * 1e3)

    cpu, began = machine_cpu_s(), time.perf_counter()
    await asyncio.gather(*map(drive, envs))
    wall = time.perf_counter() - began
    return Measured(
        p50_ms=statistics.median(taken),
        p95_ms=sorted(taken)[int(len(taken) * 0.95)],
        per_s=len(taken) / wall,
        cpu_ms=(machine_cpu_s() - cpu) / len(taken) * 1e3,
    )


def machine_cpu_s() -> float:
    """Seconds of CPU that all processes of this machine have used."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / 100


class Kinds:
    """The ways to run an action that are compared."""

    def __init__(self, builder: DockerEnvBuilder) -> None:
        self._builder = builder

    async def exec(self, env: DockerEnv, command: str = TRUE) -> None:
        """`docker exec` as the SDK's `exec_run` does it: create, start, inspect."""

        def request(client: Any) -> int:
            made = client.exec_create(env.name, ["/bin/bash", "-c", command])["Id"]
            client.exec_start(made)
            return int(client.exec_inspect(made)["ExitCode"])

        assert await self._builder.engine.call(request) == 0

    async def session(self, env: DockerEnv, command: str = TRUE) -> None:
        """The environment's own `execute`."""
        assert (await env.execute(command)).exit_code == 0

    async def direct(self, env: DockerEnv) -> None:
        """The session without a shell."""
        assert (await env.run((TRUE,))).exit_code == 0

    async def exec_output(self, env: DockerEnv) -> None:
        """64 KB of output through exec."""
        await self.exec(env, OUTPUT)

    async def session_output(self, env: DockerEnv) -> None:
        """64 KB of output through the session."""
        await self.session(env, OUTPUT)


async def one_round(kinds: Kinds, envs: Sequence[DockerEnv]) -> dict[str, Measured]:
    """Measure everything once, exec and session in turns."""
    found = {}
    for width in sorted({min(width, len(envs)) for width in (1, 16, 64)}):
        some, execs = envs[:width], EXEC_ACTIONS.get(width, width)
        sessions = SESSION_ACTIONS.get(width, 20 * width)
        found[f"exec_c{width}"] = await measure(some, execs, kinds.exec)
        found[f"session_c{width}"] = await measure(some, sessions, kinds.session)
        found[f"direct_c{width}"] = await measure(some, sessions, kinds.direct)
        found[f"exec_64kb_c{width}"] = await measure(some, execs, kinds.exec_output)
        found[f"session_64kb_c{width}"] = await measure(some, sessions, kinds.session_output)
    return found


async def kill_times_ms(env: DockerEnv) -> list[float]:
    """Measure from the deadline to the death of a tree that resists."""
    times = []
    for _ in range(KILLS):
        result = await env.execute(TREE, timeout_s=0.2)
        assert result.timed_out
        times.append((result.duration_s - 0.2) * 1e3)
    return times


def figures(rounds: Sequence[dict[str, Measured]], kills: Sequence[float], live: int) -> Any:
    """Flatten to names and numbers: medians over the rounds, ratios taken within each."""
    flat: dict[str, float] = {"live": live, "tree_kill_ms": statistics.median(kills)}
    for name in rounds[0]:
        for field in ("p50_ms", "p95_ms", "per_s", "cpu_ms"):
            values = [getattr(one[name], field) for one in rounds]
            flat[f"{name}_{field}"] = statistics.median(values)
    for width in (1, 16, 64):
        if f"exec_c{width}" not in rounds[0]:
            continue
        for kind, label in (("session", ""), ("direct", "_direct")):
            pairs = [(one[f"exec_c{width}"], one[f"{kind}_c{width}"]) for one in rounds]
            flat[f"p50_ratio{label}_c{width}"] = statistics.median(
                a.p50_ms / b.p50_ms for a, b in pairs
            )
            flat[f"throughput_ratio{label}_c{width}"] = statistics.median(
                b.per_s / a.per_s for a, b in pairs
            )
    return flat


async def run(rounds: int, live: int) -> dict[str, float]:
    """Start the containers and measure."""
    runner = AsyncioRunner()
    builder = DockerEnvBuilder({"pids": 64, "memory_bytes": 128 << 20}, runner=runner)
    try:
        envs = await asyncio.gather(*(builder.start(ContainerSpec()) for _ in range(live)))
        await asyncio.gather(*(env.execute(TRUE) for env in envs))
        kinds = Kinds(builder)
        measured = [await one_round(kinds, envs) for _ in range(rounds)]
        return dict(figures(measured, await kill_times_ms(envs[0]), len(envs)))
    finally:
        await builder.close()
        runner.close()


def show(flat: dict[str, float]) -> None:
    """Print the table and the goals."""
    kinds = [name.removesuffix("_per_s") for name in flat if name.endswith("_per_s")]
    print(f"{'':20} {'p50 ms':>9} {'p95 ms':>9} {'a second':>9} {'CPU ms':>8}")
    for kind in kinds:
        row = [flat[f"{kind}_{field}"] for field in ("p50_ms", "p95_ms", "per_s", "cpu_ms")]
        print(f"{kind:20} {row[0]:9.2f} {row[1]:9.2f} {row[2]:9.0f} {row[3]:8.2f}")
    for name, goal in GOALS.items():
        if name in flat:
            found = "reached" if flat[name] >= goal else "missed"
            print(f"{name:30} {flat[name]:8.1f}   goal {goal:g}: {found}")
    print(f"{'tree_kill_ms':30} {flat['tree_kill_ms']:8.1f}   goal {KILL_GOAL_MS:g}, not gated")


def main() -> None:
    """Measure, print, write. A busy machine misses goals by chance; the gate judges, by ratios."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.container_actions", description=__doc__
    )
    parser.add_argument("--json", type=output_file)
    parser.add_argument("--rounds", type=positive, default=5)
    parser.add_argument("--live", type=positive, default=64)
    arguments = parser.parse_args()
    try:
        flat = asyncio.run(run(arguments.rounds, arguments.live))
    except (ConfigError, EngineUnavailable, ImageMissing) as error:
        raise SystemExit(
            f"error: {error} (`make docker` starts an engine with the image)"
        ) from error
    show(flat)
    config = {"rounds": arguments.rounds, "live": arguments.live}
    write_report(arguments.json, flat, config=config)


if __name__ == "__main__":
    main()
