"""RolloutBackend: what a trainer holds.

    trainer ─ step, submit, validate ─▶ DataCoordinator ─▶ RolloutWorkers ─▶ flows ─▶ engine
            ◀─ groups, ack ────────────       ▲                  ▲
            ─ pause, weights_updated, resume ─┴─── WeightSync ───┘

There is a worker with a flow for each replica of the engine.
Owns nothing but the parts' life: it starts them, passes calls on, and takes them down. What runs
when is the flow's decision, which group is complete the coordinator's. Everything is called on one
event loop; code without one takes `SyncRolloutBackend` (`backend.sync()`).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from agentflow.config_loading import Sources, check
from agentflow.errors import AgentflowError, ConfigError
from agentflow.runner import AsyncioRunner
from agentflow.types import Cause, Ending, EpisodeId, SyncMode
from executors.backend_parts import BackendParts
from executors.data import journal_schema
from executors.data.books import afresh
from executors.data.observers import BookObserver
from executors.data.prompts import Issued, Issuer, as_samples, whole
from executors.data.resuming import restored, resumed_config
from executors.failures import first_failure
from executors.held_sync import HeldSync
from executors.lifetimes import check_lifetimes, with_lifetimes
from executors.wiring import build_engine, check_sources, require_engine, runnable_tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
    from types import TracebackType

    from agentflow.config import AgentflowConfig
    from agentflow.engine.turns import EngineAccess
    from executors.data.groups import Group
    from executors.data.prompts import Prompt
    from executors.sync_backend import SyncRolloutBackend

    EngineMaker = Callable[[AgentflowConfig, Sequence[Mapping[str, Any]]], EngineAccess]
    TaskLoader = Callable[[AgentflowConfig], Sequence[Mapping[str, Any]]]

STATE_SCHEMA = "agentflow-backend/1"
TICK_S = 0.5
"""Between two looks at leases and deadlines, which are tens of seconds and more."""

logger = logging.getLogger(__name__)


class BackendFailed(AgentflowError):
    """The rollouts cannot go on; says why. What was delivered stays delivered."""


class RolloutBackend:
    """Rollouts for a trainer: prompts in, complete groups out."""

    def __init__(
        self,
        config: AgentflowConfig,
        *,
        make_engine: EngineMaker = build_engine,
        load_tasks: TaskLoader = runnable_tasks,
        resume: bool = False,
    ) -> None:
        """Needs `engine.url`; `tasks.source` fills `tasks`, and `run.out` keeps what ended.

        With `rollout.journal` another process can `resume` it. Raises ConfigError.
        """
        require_engine(config)
        self._make_engine = make_engine
        self.tasks: Sequence[Mapping[str, Any]] = (
            load_tasks(config) if config.tasks.source is not None else ()
        )
        """The rows of `tasks.source`, to make prompts of."""
        self._config = with_lifetimes(config, self.tasks)
        self._runner = AsyncioRunner(seed=config.run.seed)
        self._issuer = Issuer()
        self._open: dict[str, Issued] = {}
        """Groups that were issued and not acknowledged."""
        self._delivered: set[str] = set()
        self._claimed: set[str] = set()
        """Groups that a `step` or `validate` waits for, which `groups` leaves alone."""
        self._unclaimed: list[Group] = []
        """Taken by a step that was cut short."""
        self._resumes = resume
        self._loaded = False
        """Whether a checkpoint says which groups are wanted."""
        self._checkpoints = 0
        self._version = 0
        self._stack = contextlib.AsyncExitStack()
        self._parts: BackendParts | None = None
        self._working: asyncio.Task[None] | None = None
        self._pause: HeldSync | None = None

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **keywords: Any) -> Self:
        """Make one from a configuration file's content. Raises ConfigError."""
        return cls(check(Sources(values=dict(config), default="config")), **keywords)

    @classmethod
    def from_run(cls, path: Path | str, **keywords: Any) -> Self:
        """Go on with a killed backend's run, as it was configured. Raises ConfigError.

        Groups that were not acknowledged come again, with the samples that had ended;
        `load_state_dict` before `start` takes it back to a checkpoint.
        """
        path = Path(path)
        config = resumed_config(path)
        if not config.rollout.journal:
            raise ConfigError(f"{path} has no {journal_schema.FILE}: the run kept no journal")
        return cls(config, resume=True, **keywords)

    def sync(self) -> SyncRolloutBackend:
        """Give the same backend to code without an event loop."""
        from executors.sync_backend import SyncRolloutBackend  # noqa: PLC0415  # it imports this

        return SyncRolloutBackend(self)

    # --- its life -----------------------------------------------------------------------------

    async def start(self) -> None:
        """Reach the engine and start working. Raises ConfigError; nothing is left behind then."""
        if self._parts is not None:
            raise RuntimeError("the backend was started already; make a new one")
        try:
            self._parts = await BackendParts.build(
                self._config,
                self._stack,
                self._runner,
                make=self._make_engine,
                tasks=self.tasks,
                observer=_Forgets(self._open),
                resume=self._resumes,
            )
            self._parts.set_version(self._version)
            here = self._restore(self._parts)
        except BaseException:
            await self._stack.aclose()
            raise
        for issued in self._open.values():
            if issued.uid not in here:
                self._parts.coordinator.add(issued.samples())
        self._working = asyncio.get_running_loop().create_task(self._work(), name="rollouts")

    def _restore(self, parts: BackendParts) -> set[str]:
        """Take over what an earlier process left, as far as it is wanted; returns its uids."""
        here, left = set[str](), parts.left
        if left is None:
            return here
        assert parts.journal is not None
        for uid, members in left.groups.items():
            wanted = uid in self._open if self._loaded else uid not in left.acked
            if not wanted or members[0].sample.validate:  # nobody waits for it any more
                if uid not in left.acked:
                    parts.journal.group_dropped(uid)
                continue
            parts.journal.unacked(uid)
            parts.restore(restored(members))
            prompt = afresh(members[0].sample, episode=EpisodeId(uid=uid))
            self._open[uid] = Issued(prompt=prompt, n=len(members))
            here.add(uid)
        self._issuer.know([*left.acked, *left.groups, *parts.rows])
        self._checkpoints = max([self._checkpoints, *(c + 1 for c in left.acked.values())])
        return here

    async def close(self) -> None:
        """End what runs, remove every environment, let go of the engine. Idempotent.

        Who waits for a group hears BackendFailed.
        """
        try:
            if self._pause is not None:
                await self.resume()
        finally:
            if self._working is not None:
                self._working.cancel()
                await asyncio.wait([self._working])
                self._working = None
            if self._parts is not None:
                self._parts.coordinator.fail(BackendFailed("the backend was closed"))
            await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        exc: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        await self.close()

    async def _work(self) -> None:
        """Run the workers; whatever ends them reaches everybody who waits for a group."""
        parts = self._running
        try:
            async with asyncio.TaskGroup() as tasks:
                for worker in parts.workers:
                    tasks.create_task(worker.run(), name=f"worker {worker.name}")
                tasks.create_task(self._keep_house(), name="deadlines")
                if parts.watch is not None:
                    tasks.create_task(parts.watch.run(), name="watch")
        except ExceptionGroup as group:
            logger.exception("the rollouts failed")
            parts.failed = first_failure(group)
            parts.coordinator.fail(BackendFailed(parts.failed))

    async def _keep_house(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._running.coordinator.expire()
            self._running.coordinator.close_overdue()

    @property
    def _running(self) -> BackendParts:
        if self._parts is None:
            raise RuntimeError("the backend is not started: call start() first")
        return self._parts

    # --- prompts in, groups out ---------------------------------------------------------------

    def submit(self, prompts: Sequence[Prompt], *, n: int | None = None) -> list[str]:
        """Issue prompts, `n` samples each (`run.n`); returns the uids of their groups.

        Groups come out of `groups`. A prompt is a task row or a RolloutSample. Raises ValueError
        and ConfigError for a wrong one, and issues none then; BackendFailed when nothing can go on.
        """
        return [issued.uid for issued in self._issue(prompts, n=n)]

    async def groups(self) -> AsyncIterator[Group]:
        """Yield complete groups of exactly n samples, waiting for them; ends after `finish`.

        Samples that cannot be trained on are masked (`remove_sample`) and keep their place. Raises
        DeadGroups and BackendFailed.
        """
        while (group := await self._next_group(but=self._claimed)) is not None:
            yield group

    async def step(
        self, prompts: Sequence[Prompt], *, n: int | None = None, enough: int | None = None
    ) -> list[Group]:
        """Issue prompts and wait for their groups, in the order of the prompts.

        With `enough`, as many groups are awaited as that; the rest is aborted and counted as
        surplus. Groups that no sample of can be trained on are dropped, and missing. Raises as
        `groups` does.
        """
        if enough is not None:
            enough = whole("enough", enough, least=0)
        return await self._collect(self._issue(prompts, n=n), enough=enough)

    async def validate(self, prompts: Sequence[Prompt], *, n: int = 1) -> list[Group]:
        """Roll prompts out before all others, not for training; as `step`, acknowledged at once.

        Cut short it drops them: they are nobody else's.
        """
        batch = self._issue(prompts, n=n, validate=True)
        try:
            groups = await self._collect(batch)
        except asyncio.CancelledError:
            self._withdraw(batch)
            raise
        for group in groups:
            await self.ack(group)
        return groups

    async def ack(self, group: Group) -> None:
        """Say that the trainer has used a group: it will not come again, whatever happens.

        Raises ValueError for a group that was not delivered, or was acknowledged before.
        """
        uid = group[0].episode.uid if group else ""
        if uid not in self._delivered:
            raise ValueError(f"group {uid!r} waits for no acknowledgement; ack each group once")
        self._used(uid)
        journal = self._running.journal
        if journal is not None:
            await journal.kept()

    def _used(self, uid: str) -> None:
        self._delivered.remove(uid)
        del self._open[uid]
        journal = self._running.journal
        if journal is not None:
            journal.acked(uid, self._checkpoints)

    def finish(self) -> None:
        """Say that nothing more will be submitted, nor validated, so that `groups` ends."""
        self._running.coordinator.finish()

    def _issue(
        self, prompts: Sequence[Prompt], *, n: int | None, validate: bool = False
    ) -> list[Issued]:
        parts, samples = self._running, as_samples(prompts)
        size = whole("n", n if n is not None else self._config.run.n, least=1)
        parts.coordinator.check_open()
        tasks = [sample.task for sample in samples]
        check_sources(self._config, tasks, where="prompt")
        check_lifetimes(self._config, tasks)
        batch = [self._issuer.issue(sample, n=size, validate=validate) for sample in samples]
        for issued in batch:
            self._open[issued.uid] = issued
        parts.coordinator.add(sample for issued in batch for sample in issued.samples())
        return batch

    async def _collect(self, batch: Sequence[Issued], *, enough: int | None = None) -> list[Group]:
        left = dict.fromkeys(issued.uid for issued in batch)
        order = {uid: place for place, uid in enumerate(left)}
        wanted = len(left) if enough is None else enough
        groups: list[Group] = []
        self._claimed |= left.keys()
        try:
            while len(groups) < wanted and (group := await self._next_group(left)) is not None:
                groups.append(group)
                del left[group[0].episode.uid]
        except BaseException:  # whoever asks next gets what this call had
            self._unclaimed += groups
            raise
        finally:
            self._claimed -= order.keys()
        self._drop(left, Ending(cause=Cause.SURPLUS, phase="group", message="enough were complete"))
        return sorted(groups, key=lambda group: order[group[0].episode.uid])

    async def _next_group(
        self, among: Collection[str] | None = None, *, but: Collection[str] = ()
    ) -> Group | None:
        kept = self._take_unclaimed(among, but)
        if kept is not None:
            return kept
        group = await self._running.coordinator.next_group(among, but=but)
        if group is not None:
            self._delivered.add(group[0].episode.uid)
        return group

    def _take_unclaimed(self, among: Collection[str] | None, but: Collection[str]) -> Group | None:
        for group in self._unclaimed:
            uid = group[0].episode.uid
            if uid in among if among is not None else uid not in but:
                self._unclaimed.remove(group)
                return group
        return None

    def _withdraw(self, batch: Sequence[Issued]) -> None:
        """Let go of groups whose caller has gone, wherever they are."""
        uids = {issued.uid for issued in batch}
        self._unclaimed = [g for g in self._unclaimed if g[0].episode.uid not in uids]
        for uid in uids & self._delivered:
            self._used(uid)
        message = "whoever asked for it was cancelled"
        self._drop(
            uids & self._open.keys(),
            Ending(cause=Cause.CANCELLED, phase="group", message=message),
        )

    def _drop(self, uids: Collection[str], ending: Ending) -> None:
        for uid in uids:
            self._running.coordinator.drop_group(uid, ending)

    # --- weights ------------------------------------------------------------------------------

    async def pause(self, mode: SyncMode | str = SyncMode.ABORT) -> None:
        """Let no generation run, so that the engine's weights can be replaced.

        Starts, commands and rewards go on. `mode` says what becomes of generations in flight.
        """
        if self._pause is not None:
            raise RuntimeError("the backend is paused already; resume() first")
        if mode not in set(SyncMode):
            raise ValueError(f"mode is {mode!r}; it must be one of {', '.join(SyncMode)}")
        self._pause = HeldSync(self._running.sync, SyncMode(mode))
        try:
            await self._pause.begin()
        except BaseException:
            self._pause = None
            raise

    async def resume(self) -> None:
        """Go on generating; interrupted episodes first. Harmless when not paused."""
        pause, self._pause = self._pause, None
        if pause is not None:
            await pause.end()

    def weights_updated(self, version: int) -> None:
        """Say that the trainer's weights are `version` now, from which staleness is counted.

        By itself it interrupts nothing. Raises ValueError for a version below the last one.
        """
        version = whole("version", version, least=0)
        self._running.set_version(version)
        self._version = version

    # --- state --------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Give what a checkpoint needs: the prompts not acknowledged, as plain data.

        With a journal, results of groups that were acknowledged before the last checkpoint but one
        are forgotten: going back further rolls them out again.
        """
        self._checkpoints += 1
        if self._parts is not None and self._parts.journal is not None:
            self._parts.journal.forget_acked(self._checkpoints - 1)
        return {
            "schema": STATE_SCHEMA,
            "version": self._version,
            "checkpoints": self._checkpoints,
            "issued": dict(self._issuer.times),
            "open": [i.to_plain() for i in self._open.values() if not i.prompt.validate],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state, before `start`: what was not acknowledged is issued again.

        Raises ConfigError for a state of something else.
        """
        if self._parts is not None:
            raise RuntimeError("load_state_dict comes before start")
        schema = state.get("schema") if state else None
        if schema != STATE_SCHEMA:
            raise ConfigError(
                f"state: schema is {schema!r}; it must be {STATE_SCHEMA!r}, as state_dict gives it"
            )
        missing = {"version", "checkpoints", "issued", "open"} - state.keys()
        if missing:
            raise ConfigError(f"state: {', '.join(sorted(missing))} is missing; it was cut")
        self._loaded = True
        self._version, self._checkpoints = state["version"], state["checkpoints"]
        self._issuer.times.update(state["issued"])
        self._open = {plain["uid"]: Issued.from_plain(plain) for plain in state["open"]}

    def metrics(self) -> dict[str, float]:
        """Give the gauges of the parts: `coordinator/queued`, `local/generating`, `tokens/live`."""
        parts = self._running
        return {
            **_named("coordinator", parts.coordinator.gauges()),
            **_named("tokens", parts.books.figures()),
            **{k: v for w in parts.workers for k, v in _named(w.name, w.gauges()).items()},
            "weights/version": self._version,
            "groups/open": len(self._open),
        }


class _Forgets(BookObserver):
    """Groups that are dropped need no acknowledgement, and come in no checkpoint."""

    def __init__(self, issued: dict[str, Issued]) -> None:
        self._issued = issued

    def group_dropped(self, uid: str) -> None:
        """Forget it."""
        self._issued.pop(uid, None)


def _named(prefix: str, gauges: Mapping[str, float]) -> dict[str, float]:
    return {f"{prefix}/{name}": value for name, value in gauges.items()}
