"""DockerEnvBuilder: starts environments under its limits, and leaves none behind."""

from __future__ import annotations

import asyncio
import logging
import posixpath
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentflow.errors import EnvDied, EnvStartFailed
from agentflow.runner import AsyncioRunner
from agentflow.swe.environment.docker.config import DockerConfig
from agentflow.swe.environment.docker.detached import Detached, lease_of
from agentflow.swe.environment.docker.engine import Engine
from agentflow.swe.environment.docker.env import DockerEnv
from agentflow.swe.environment.docker.errors import (
    EngineRefused,
    EngineSilent,
    HelperGone,
)
from agentflow.swe.environment.docker.ground import Ground
from agentflow.swe.environment.docker.images import Image, Images
from agentflow.swe.environment.docker.launch import Launched, Launcher
from agentflow.swe.environment.docker.leases import EnvLease, LeaseBook
from agentflow.swe.environment.docker.limits import Stage
from agentflow.swe.environment.docker.nursery import Nursery
from agentflow.swe.environment.docker.owner import BUILDER_LABEL, PURPOSE_LABEL, REWARD
from agentflow.swe.environment.docker.pool import Pool
from agentflow.swe.environment.docker.sweep import sweep
from agentflow.types import ContainerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from agentflow.protocols import Runner

log = logging.getLogger(__name__)

HELD_S = 24 * 3600
"""How long after its start a dead process's container waits for a resume. It ends itself when it
has heard nothing for `ttl_s`, and from then on only takes room."""


class DockerEnvBuilder:
    """Starts environments on one engine. Used from one event loop."""

    config_class = DockerConfig

    def __init__(
        self,
        subconf: Mapping[str, Any] | DockerConfig,
        *,
        runner: Runner | None = None,
        run_id: str | None = None,
    ) -> None:
        """`run_id` is on every container as the label `agentflow.run`. Raises ConfigError."""
        self._config = config = DockerConfig.parse(subconf)
        self._own_runner = AsyncioRunner() if runner is None else None
        self._runner: Runner = runner or self._own_runner or AsyncioRunner()
        self.engine = Engine(
            host=config.docker_host, timeout_s=config.engine_timeout_s, runner=self._runner
        )
        self._nursery = Nursery()
        self._launcher = Launcher(
            self.engine, config, nursery=self._nursery, runner=self._runner, run_id=run_id
        )
        self._starting = Stage(config.max_starting, self._runner)
        self._live = Stage(config.max_live, self._runner)
        self._rewards = Stage(config.max_rewards, self._runner)
        self._commands = Stage(config.max_commands, self._runner)
        self._pool = Pool(config.pool_size, self._launch, self._nursery)
        self._book = LeaseBook()
        self._ground = Ground(
            self.engine,
            config,
            book=self._book,
            images=Images(self.engine, pull=config.pull),
            launcher=self._launcher,
            runner=self._runner,
        )
        self._envs: dict[str, DockerEnv] = {}
        self._releases: dict[str, Callable[[], None]] = {}
        self._detached = Detached(
            self.engine,
            book=self._book,
            launcher=self._launcher,
            nursery=self._nursery,
            runner=self._runner,
        )
        self._held: set[str] = set()
        """Environments of ours that a sweep must spare though this process may die."""
        self._closed = False

    # --- start --------------------------------------------------------------------------------

    async def start(self, spec: ContainerSpec) -> DockerEnv:
        """Bring an environment up in its own container; see `ContainerEnvBuilder.start`.

        Raises ImageMissing, EngineUnavailable, StartTimedOut or another EnvStartFailed. A spec
        whose label `agentflow.purpose` is `reward` is a judge's: it goes before other starts and
        counts against `max_rewards`.
        """
        starting = self._nursery.start(self._start(spec), name="start an environment")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            self._nursery.start(_discard(starting), name="discard a start")
            raise

    async def _start(self, spec: ContainerSpec) -> DockerEnv:
        image = await self._ground.image(spec.image or self._config.image)
        reward = spec.labels.get(PURPOSE_LABEL) == REWARD
        room = self._rewards if reward else self._live
        await room.acquire(urgent=reward)
        try:
            launched = await self._pool.take(image)
            if launched is None:
                launched = await self._launch(image, spec.labels, urgent=reward)
        except BaseException:
            room.release()
            raise
        env = self._env(launched, replace(spec, image=image.id), room.release)
        try:
            await self._make_workdir(env)
        except BaseException:
            await env.stop()
            raise
        return env

    async def _launch(
        self, image: Image, labels: Mapping[str, str] | None = None, *, urgent: bool = False
    ) -> Launched:
        async with self._starting.slot(urgent=urgent):
            try:
                return await self._launcher.launch(
                    image, await self._ground.volume(image), labels or {}
                )
            except HelperGone:  # `agentflow clean` ran while nothing used the volume
                self._ground.forget_volume(image)
                return await self._launcher.launch(
                    image, await self._ground.volume(image), labels or {}
                )

    async def _make_workdir(self, env: DockerEnv) -> None:
        """Make the workdir, by the means and with the rights that commands have."""
        try:
            await env.write_files({})
        except ValueError as error:
            raise EnvStartFailed(
                f"workdir {env.spec.workdir!r}: {error}; the image must have it, writable for the"
                " container's user, or the user must be able to make it"
            ) from error
        except EnvDied as error:
            raise EnvStartFailed(f"{env.name} died while it started: {error}") from error

    def _env(
        self, launched: Launched, spec: ContainerSpec, release: Callable[[], None]
    ) -> DockerEnv:
        name = launched.container.name

        def ended() -> None:
            self._envs.pop(name, None)
            self._releases.pop(name)()
            if name in self._held:
                self._held.remove(name)
                self._book.drop(name)

        self._releases[name] = release
        env = DockerEnv(
            container=launched.container,
            session=launched.session,
            spec=replace(spec, workdir=posixpath.normpath(spec.workdir)),
            config=self._config,
            facts={"image": spec.image, **self._ground.facts},
            commands=self._commands,
            nursery=self._nursery,
            ended=ended,
        )
        self._envs[name] = env
        return env

    # --- leases -------------------------------------------------------------------------------

    async def detach(
        self, env: DockerEnv, *, lease_s: float | None = None, snapshot: bool | None = None
    ) -> EnvLease:
        """Let go of an environment that somebody will `attach` to within `lease_s` seconds.

        It keeps its place among the live ones while this process may still get it back. With
        `snapshot` its file system is kept as an image, for the case that the container is gone.
        Raises EnvDied, and then the environment is still the caller's to stop.
        """
        return await self._nursery.shielded(
            self._detach(
                env,
                lease_s=self._config.lease_s if lease_s is None else lease_s,
                snapshot=self._config.snapshot if snapshot is None else snapshot,
            ),
            name=f"detach {env.name}",
        )

    async def _detach(self, env: DockerEnv, *, lease_s: float, snapshot: bool) -> EnvLease:
        await env.check_alive()
        give_back = self._releases[env.name]
        lease = await self._detached.let_go(env, give_back, lease_s=lease_s, snapshot=snapshot)
        self._envs.pop(env.name, None)
        del self._releases[env.name]
        return lease

    async def attach(self, lease: EnvLease) -> DockerEnv:
        """Take a detached environment back, here or in another process.

        When its container is gone a snapshot restores the file system, if one was made; otherwise
        EnvDied says so and the episode restarts clean. A cancelled wait leaves the environment
        to `close`.
        """
        return await self._nursery.shielded(self._attach(lease), name=f"attach {lease.container}")

    async def _attach(self, lease: EnvLease) -> DockerEnv:
        image = await self._ground.image(lease.image)
        release = self._detached.take_place(lease.container)
        if release is None:
            await self._live.acquire()
            release = self._live.release
        try:
            launched = await self._attached(lease, image)
        except BaseException:
            release()
            raise
        return self._env(launched, _spec_of(lease), release)

    async def _attached(self, lease: EnvLease, image: Image) -> Launched:
        volume = await self._ground.volume(image)
        try:
            launched = await self._detached.connect(
                lease, image, shell=volume is None, ttl_s=self._config.ttl_s
            )
        except EnvDied as error:
            if lease.snapshot is None:
                raise
            log.info("%s; restoring its snapshot", error)
            restored = Image(id=lease.snapshot, architecture=image.architecture)
            return await self._launch(restored, lease.labels)
        await self._runner.to_thread(self._book.hold, lease)
        self._held.add(lease.container)
        if lease.snapshot is not None:
            await self.engine.remove_image(lease.snapshot)
        return launched

    def lease(self, env: DockerEnv) -> EnvLease:
        """Say how another process comes back to an environment, without letting go of it."""
        return lease_of(env, expires_at=self._runner.wall_time() + HELD_S)

    async def hold(self, lease: EnvLease, *, journal: str) -> None:
        """Let sweeps spare it, now and for a while after the death of this process."""
        await self._runner.to_thread(self._book.hold, lease, journal=journal)
        self._held.add(lease.container)

    async def release(self, lease: EnvLease) -> None:
        """Remove a container that nobody will attach to. Harmless when it is gone."""
        await self._detached.release(lease)

    # --- end ----------------------------------------------------------------------------------

    def gauges(self) -> dict[str, dict[str, float]]:
        """Each stage's slots, queue and waiting time, and the pool's state."""
        return {
            "starting": self._starting.gauges(),
            "live": self._live.gauges(),
            "rewards": self._rewards.gauges(),
            "commands": self._commands.gauges(),
            "pool": self._pool.gauges(),
        }

    async def close(self) -> None:
        """Remove every environment that is neither stopped nor leased. Idempotent.

        A cancelled wait leaves the removal running.
        """
        if not self._closed:
            self._closed = True
            self._pool.close()
            self._detached.close()
        await asyncio.shield(self._nursery.start(self._stop_all(), name="stop all"))
        await self._nursery.wait()
        await self._remove_stragglers()
        await self.engine.close()
        if self._own_runner is not None:
            self._own_runner.close()

    async def _stop_all(self) -> None:
        stops = (env.stop() for env in list(self._envs.values()))
        for outcome in await asyncio.gather(*stops, return_exceptions=True):
            if isinstance(outcome, BaseException):
                log.warning("a container may be left: %s", outcome)

    async def _remove_stragglers(self) -> None:
        """Remove what the engine made after we had given it up, and what dead owners left."""
        if not self._ground.facts:
            return
        now = self._runner.wall_time()
        try:
            for found in await self.engine.containers(f"{BUILDER_LABEL}={self._launcher.builder}"):
                name = str(found["Names"][0]).lstrip("/")
                if not self._book.is_leased(name, now=now):
                    await self.engine.remove(name)
            await sweep(self.engine, book=self._book, now=now)
        except (EngineRefused, EngineSilent) as error:
            log.warning("containers may be left, `agentflow clean` removes them: %s", error)


async def _discard(starting: asyncio.Task[DockerEnv]) -> None:
    """Remove what a start makes that nobody waits for any more."""
    await asyncio.wait({starting})
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().stop()


def _spec_of(lease: EnvLease) -> ContainerSpec:
    return ContainerSpec(
        image=lease.image, workdir=lease.workdir, env=lease.env, labels=lease.labels
    )
