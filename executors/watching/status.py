"""What `agentflow status` says of a run: as data, and in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.observe.doing import Doing
from executors.watching.run_look import Standing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agentflow.observe.run_state import Progress
    from executors.watching.run_look import RunLook

SCHEMA = "agentflow-status/1"

WORDS = {
    Doing.QUEUED: "waits for a worker",
    Doing.WAITS_START: "waits for an environment",
    Doing.STARTING: "starts its environment",
    Doing.WAITS_GENERATION: "waits for a generation",
    Doing.GENERATING: "generates",
    Doing.WAITS_COMMAND: "waits to run a command",
    Doing.COMMAND: "runs a command",
    Doing.ENDING: "ends",
    Doing.WAITS_REWARD: "waits for its reward",
    Doing.REWARDING: "is judged",
    Doing.INTERRUPTED: "was interrupted by a weight update",
    Doing.ENDED: "has ended",
}


def status_data(look: RunLook) -> dict[str, Any]:
    """Give a run's status as JSON has it: seconds, counts, and every episode that has not ended."""
    state, now = look.state, look.now
    return {
        "schema": SCHEMA,
        "dir": str(look.folder),
        "id": look.run.get("id"),
        "status": look.standing,
        "error": look.run.get("error") or state.stalled,
        "started": look.run.get("started"),
        "seconds": max(now - state.began, 0.0) if state.began else 0.0,
        "quiet_s": max(now - state.last, 0.0) if state.last else 0.0,
        "planned": state.run.get("planned"),
        "issued": len(state.episodes),
        "ended": state.doing[Doing.ENDED],
        "endings": [
            {"status": status, "cause": cause, "count": count}
            for (status, cause), count in sorted(state.ended.items())
        ],
        "doing": {str(doing): state.doing[doing] for doing in Doing},
        "waiting": state.waiting(),
        "slots": {
            name: {"busy": slots.busy, "total": slots.total}
            for name, slots in state.books.replicas.items()
        },
        "env_stages": env_stages(look),
        "envs": {str(env): count for env, count in state.envs.items()},
        "tokens": dict(state.tokens),
        "preemptions": dict(state.preemptions),
        "weight_version": state.version,
        "syncing": state.syncing,
        "metrics_url": state.metrics_url,
        "torn_lines": look.torn,
        "episodes": [_episode(progress, now) for progress in look.open_episodes()],
    }


def _episode(progress: Progress, now: float) -> dict[str, Any]:
    return {
        "uid": progress.episode.uid,
        "replica_index": progress.episode.replica_index,
        "doing": progress.doing,
        "for_s": now - progress.since,
        "attempt": progress.attempt,
        "turns": progress.turns,
        "tokens": progress.tokens,
        "worker": progress.worker,
        "env": progress.env,
        "preemptions": progress.preemptions,
        "interruptions": progress.interruptions,
    }


def env_stages(look: RunLook) -> dict[str, dict[str, float]]:
    """Give the gauges of the environments' builder as of the last look; none once it is over."""
    running = look.standing is Standing.RUNNING
    found: dict[str, dict[str, float]] = look.queues().get("environments", {}) if running else {}
    return found


def headlines(look: RunLook) -> Iterator[str]:
    """Tell how the run stands, in some lines."""
    state = look.state
    ended = state.doing[Doing.ENDED]
    planned = state.run.get("planned") or len(state.episodes)
    seconds = max(look.now - state.began, 0.0) if state.began else 0.0
    yield f"{look.folder}: {look.standing}, {ended} of {planned} episodes ended, {seconds:.0f} s"
    if look.standing is Standing.RUNNING and state.last:
        yield f"last event {look.now - state.last:.1f} s ago"
    error = look.run.get("error") or state.stalled
    if error:
        yield f"error: {error}"
    if state.syncing is not None:
        yield f"a weight update is under way ({state.syncing})"
    for name, slots in state.books.replicas.items():
        yield f"{name}: {slots.busy} of {slots.total} generation slots in use"
    waiting = ", ".join(f"{stage} {n}" for stage, n in state.waiting().items() if n)
    if waiting:
        yield f"waiting for {waiting}"
    yield from _env_lines(look)
    endings = ", ".join(f"{s}/{c} {n}" for (s, c), n in sorted(state.ended.items()))
    if endings:
        yield f"ended as {endings}"
    tokens = ", ".join(f"{cause} {n}" for cause, n in state.tokens.items() if n)
    if tokens:
        yield f"tokens {tokens}"
    if state.metrics_url is not None and look.standing is Standing.RUNNING:
        yield f"metrics at {state.metrics_url}"


def _env_lines(look: RunLook) -> Iterator[str]:
    for stage, told in env_stages(look).items():
        if told.get("in_use") or told.get("waiting"):
            yield (
                f"environments, {stage}: {told['in_use']:.0f} of {told['limit']:.0f} in use,"
                f" {told['waiting']:.0f} wait, longest wait {told['longest_wait_s']:.1f} s"
            )
