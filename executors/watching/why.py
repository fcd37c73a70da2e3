"""Why an episode stands where it does: its place in line, who is ahead, which limit is full.

Made from a run's files alone. Order, class and rank are those that the scheduler gave when it last
wrote queues.json; without that file, as where whole trajectories run, the line is by time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from agentflow.observe.doing import WAITS, Doing
from executors.watching.run_look import Standing
from executors.watching.status import WORDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agentflow.observe.run_state import Progress
    from executors.watching.run_look import RunLook

_NAMED = 5
"""Episodes that a line names; the rest are counted."""

_HOLDERS: Final[dict[Doing, Sequence[tuple[str, str, tuple[Doing, ...]]]]] = {
    Doing.WAITS_GENERATION: [("generations", "generation slots", (Doing.GENERATING,))],
    Doing.WAITS_COMMAND: [("commands", "commands at once", (Doing.COMMAND,))],
    Doing.WAITS_REWARD: [("rewards", "rewards at once", (Doing.REWARDING,))],
    Doing.WAITS_START: [("starts", "starts at once", (Doing.STARTING,))],
}
"""By wait: the limit's name in `run_started`, in words, and who is under it."""

_LIVE: Final = (
    Doing.WAITS_GENERATION,
    Doing.GENERATING,
    Doing.WAITS_COMMAND,
    Doing.COMMAND,
    Doing.ENDING,
)
_BETWEEN: Final = frozenset({Doing.QUEUED, Doing.INTERRUPTED, Doing.ENDED})


class Why:
    """Explains episodes of one look at a run."""

    def __init__(self, look: RunLook) -> None:
        self._look = look
        self._state = look.state
        saved = look.queues()
        self._queues: dict[str, list[dict[str, Any]]] = saved.get("queues", {})
        self._saved_at: float = saved.get("wall", 0.0)

    def explain(self, progress: Progress) -> list[str]:
        """Say what the episode does and why, a sentence a line; the first names it."""
        if progress.ending is not None:
            return [self._ended(progress, progress.ending)]
        lines = [self._doing(progress)]
        if self._look.standing is not Standing.RUNNING:
            lines.append(f"the run is {self._look.standing}; this is how it was left")
        if progress.doing in WAITS or progress.doing is Doing.INTERRUPTED:
            lines += self._place(progress)
            lines += self._limits(progress)
            if progress.doing is not Doing.QUEUED:
                lines += self._priority(progress)
        return lines

    # --- what it does -------------------------------------------------------------------------

    def _ended(self, progress: Progress, ending: Any) -> str:
        if progress.dropped_as is not None:
            return f"{progress.episode} was dropped: {ending['cause']}"
        return (
            f"{progress.episode} has ended: {ending['status']} ({ending['cause']}), reward"
            f" {ending['reward']:g}, {ending['turns']} turns, {ending['generated']} tokens"
        )

    def _doing(self, progress: Progress) -> str:
        since = self._look.now - progress.since
        said = f"{progress.episode} {WORDS[progress.doing]}, for {since:.1f} s"
        facts = [
            f"turn {progress.turns}",
            f"attempt {progress.attempt}",
            f"{progress.tokens} tokens",
        ]
        if progress.worker is not None:
            facts.append(f"with {progress.worker}")
        if progress.preemptions:
            facts.append(f"preempted {progress.preemptions} times")
        return f"{said} ({', '.join(facts)})"

    # --- its place ----------------------------------------------------------------------------

    def _place(self, progress: Progress) -> Iterator[str]:
        line = self._line(progress)
        place = line.index(str(progress.episode))
        yield f"it is number {place + 1} of {len(line)} in that line" + _names(
            "ahead", line[:place]
        )

    def _line(self, progress: Progress) -> list[str]:
        """Who waits for the same, the first one first."""
        waiting = [p for p in self._beside(progress) if p.doing is progress.doing]
        ranks = {
            f"{row['uid']}#{row['replica_index']}": place
            for place, row in enumerate(self._queues.get(WAITS.get(progress.doing, ""), ()))
        }
        by_time = progress.doing is not Doing.QUEUED
        waiting.sort(
            key=lambda p: (
                ranks.get(str(p.episode), len(ranks)),
                p.since if by_time else 0.0,
                p.number,
            )
        )
        return [str(p.episode) for p in waiting]

    # --- its limits ---------------------------------------------------------------------------

    def _limits(self, progress: Progress) -> Iterator[str]:
        full = False
        limits = self._state.workers.get(progress.worker or "", self._state.run)
        for name, words, used, holders in self._limits_of(progress):
            limit = limits.get(name)
            if limit is None:
                continue
            full = full or used >= limit
            mark = ", which is full" if used >= limit else ""
            yield f"{words}: {used} of {limit} in use{mark}" + _names("by", holders)
        if self._state.syncing is not None:
            yield f"a weight update ({self._state.syncing}) keeps generations from starting"
        elif not full and self._look.standing is Standing.RUNNING:
            yield "no limit that it waits for is full: it goes on within moments"

    def _limits_of(self, progress: Progress) -> Iterator[tuple[str, str, int, list[str]]]:
        for name, words, doing in _HOLDERS.get(progress.doing, ()):
            holders = self._who(progress, doing)
            yield name, words, len(holders), holders
        if progress.doing is Doing.WAITS_GENERATION and not progress.turns:
            live = sum(_is_live(p) for p in self._beside(progress))
            yield "live", "live episodes", live, []
        if progress.doing is Doing.WAITS_START:
            mine = {progress.worker, None}  # those of interrupted episodes are kept for it
            held = [p for p in self._state.episodes.values() if p.env and p.worker in mine]
            yield "admitted", "environments", len(held), []
        if progress.doing in {Doing.QUEUED, Doing.INTERRUPTED}:
            with_workers = [p for p in self._state.episodes.values() if p.doing not in _BETWEEN]
            name = "window" if self._state.run.get("by_action") else "generations"
            yield name, "episodes with the worker", len(with_workers), []

    def _beside(self, progress: Progress) -> Iterator[Progress]:
        """The episodes of its worker, itself among them: each has its own queues and limits."""
        return (p for p in self._state.episodes.values() if p.worker == progress.worker)

    def _who(self, progress: Progress, doing: tuple[Doing, ...]) -> list[str]:
        found = [p for p in self._beside(progress) if p.doing in doing]
        found.sort(key=lambda p: p.since)
        return [f"{p.episode} for {self._look.now - p.since:.1f} s" for p in found]

    # --- its priority -------------------------------------------------------------------------

    def _priority(self, progress: Progress) -> Iterator[str]:
        run = self._state.run
        if not run.get("by_action"):
            yield "priority: none; whole trajectories go as they come"
            return
        said = f"priority: policy {run['policy']}"
        row = self._row(progress)
        if row is None:
            yield f"{said}; its class and rank were not written down yet"
            return
        rank = "unknown" if row["rank"] is None else f"{row['rank']:g}"
        predicted = row["predicted"]
        known = "no prediction" if predicted is None else f"{predicted:g} tokens predicted to come"
        ago = self._look.now - self._saved_at
        yield (
            f"{said}; class {'high' if row['high'] else 'low'}, rank {rank} (lower goes first),"
            f" {known}; as of {max(ago, 0.0):.1f} s ago"
        )
        age_s = run.get("age_s")
        if age_s is not None:
            yield f"after {age_s:g} s of waiting it goes before all others"

    def _row(self, progress: Progress) -> dict[str, Any] | None:
        name = (progress.episode.uid, progress.episode.replica_index)
        for row in self._queues.get(WAITS.get(progress.doing, ""), ()):
            if (row["uid"], row["replica_index"]) == name:
                return row
        return None


def _is_live(progress: Progress) -> bool:
    return progress.doing in _LIVE and progress.turns > 0


def _names(word: str, names: Sequence[str]) -> str:
    if not names:
        return ""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"; {word} {', '.join(names[:_NAMED])}{more}"
