"""Detached: environments that were let go under a lease, to be taken back here or elsewhere.

Owns their places among the live ones, and the timers that end leases nobody came for.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentflow.errors import EnvDied
from agentflow.swe.environment.docker.errors import EngineRefused, EngineSilent, StreamLost
from agentflow.swe.environment.docker.launch import Launched
from agentflow.swe.environment.docker.leases import EnvLease
from agentflow.swe.environment.docker.owner import SNAPSHOT_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from agentflow.protocols import Runner
    from agentflow.swe.environment.docker.engine import Engine
    from agentflow.swe.environment.docker.env import DockerEnv
    from agentflow.swe.environment.docker.images import Image
    from agentflow.swe.environment.docker.launch import Launcher
    from agentflow.swe.environment.docker.leases import LeaseBook
    from agentflow.swe.environment.docker.nursery import Nursery

LEASE_MARGIN_S = 60
"""A leased container lives this much longer than its lease, so that it never ends under it."""


class Detached:
    """What one builder let go and may still get back."""

    def __init__(
        self,
        engine: Engine,
        *,
        book: LeaseBook,
        launcher: Launcher,
        nursery: Nursery,
        runner: Runner,
    ) -> None:
        self._engine = engine
        self._book = book
        self._launcher = launcher
        self._nursery = nursery
        self._runner = runner
        self._waiting: dict[str, tuple[Callable[[], None], asyncio.TimerHandle]] = {}

    async def let_go(
        self, env: DockerEnv, give_back: Callable[[], None], *, lease_s: float, snapshot: bool
    ) -> EnvLease:
        """Let go of an environment; `give_back` its place when nobody came in time.

        Raises EnvDied, and then it is not let go.
        """
        try:
            image = None
            if snapshot:
                image = await self._engine.commit(env.name, {SNAPSHOT_LABEL: env.name})
            expires_at = self._runner.wall_time() + lease_s
            lease = lease_of(env, expires_at=expires_at, snapshot=image)
            await self._runner.to_thread(self._book.write, lease)
            await env.let_go(ttl_s=round(lease_s) + LEASE_MARGIN_S)
        except (EngineRefused, EngineSilent, EnvDied, StreamLost) as error:
            self._book.drop(env.name)
            raise EnvDied(f"{env.name} cannot be detached: {error}") from error
        timer = asyncio.get_running_loop().call_later(lease_s, self._expire, lease)
        self._waiting[env.name] = give_back, timer
        return lease

    def take_place(self, container: str) -> Callable[[], None] | None:
        """Give the place of one that waits here, as what gives it back; None for a stranger."""
        if container not in self._waiting:
            return None
        give_back, timer = self._waiting.pop(container)
        timer.cancel()
        return give_back

    async def connect(self, lease: EnvLease, image: Image, *, shell: bool, ttl_s: int) -> Launched:
        """Talk to a container again, from now on with `ttl_s`. Raises EnvDied when it is gone."""
        container, session = self._launcher.container(lease.container, shell=shell)
        try:
            await container.ensure_running()
            await session.open()
            await session.keep_for(ttl_s)
        except (EnvDied, StreamLost) as error:
            await session.close()
            raise EnvDied(f"leased container {lease.container} is gone: {error}") from error
        return Launched(container=container, session=session, image=image)

    async def release(self, lease: EnvLease) -> None:
        """Remove one that nobody will take back. Harmless when it is gone."""
        give_back = self.take_place(lease.container)
        try:
            await self._nursery.shielded(self._remove(lease), name="release a lease")
        finally:
            if give_back is not None:
                give_back()

    def close(self) -> None:
        """Wait for leases no more: `agentflow clean`, or the containers' own ttl, ends those."""
        for _give_back, timer in self._waiting.values():
            timer.cancel()

    # --- inside -------------------------------------------------------------------------------

    def _expire(self, lease: EnvLease) -> None:
        give_back, _timer = self._waiting.pop(lease.container)
        self._nursery.start(self._end(lease, give_back), name="end a lease")

    async def _end(self, lease: EnvLease, give_back: Callable[[], None]) -> None:
        """Remove what nobody came back for; another process may have."""
        try:
            if not self._book.is_held(lease.container):
                await self._remove(lease)
        finally:
            give_back()

    async def _remove(self, lease: EnvLease) -> None:
        await self._launcher.container(lease.container, shell=False)[0].remove()
        await self._runner.to_thread(self._book.drop, lease.container)
        if lease.snapshot is not None:
            await self._engine.remove_image(lease.snapshot)


def lease_of(env: DockerEnv, *, expires_at: float, snapshot: str | None = None) -> EnvLease:
    """Say how to come back to an environment."""
    return EnvLease(
        container=env.name,
        image=env.spec.image,
        workdir=env.spec.workdir,
        env=dict(env.spec.env),
        labels=dict(env.spec.labels),
        expires_at=expires_at,
        snapshot=snapshot,
    )
