"""HeldEnvs: the environments of one flow's episodes, from their start to their end.

Owns which environment each episode has, and the leases under which those of interrupted episodes
were let go: an episode has an environment, a lease, or neither. Never runs a command of an agent.
"""

from __future__ import annotations

import logging
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, cast

from agentflow.aio import boundary, shielded
from agentflow.errors import BootstrapFailed, EnvDied, EnvStartFailed, EpisodeError
from agentflow.protocols import Detaching, Leasing
from agentflow.swe.kinds import driven_by_actions, is_env_aware

if TYPE_CHECKING:
    from agentflow.protocols import (
        ContainerEnv,
        ContainerEnvBuilder,
        EnvAware,
        EventSink,
        Keeper,
        Runner,
    )
    from agentflow.swe.sample import SWESample
    from agentflow.types import EpisodeId

logger = logging.getLogger(__name__)


class HeldEnvs:
    """Environments by episode."""

    def __init__(
        self,
        builder: ContainerEnvBuilder,
        *,
        runner: Runner,
        events: EventSink,
        keeper: Keeper | None,
    ) -> None:
        """With `keeper` another process can find the environments of single actions."""
        self._builder = builder
        self.owns_builder = True
        """Whether it is closed with this."""
        self._runner = runner
        self._events = events
        self._keeper = keeper
        self._detaching = builder if isinstance(builder, Detaching) and keeper is None else None
        self._envs: dict[EpisodeId, ContainerEnv] = {}
        self.leases: dict[EpisodeId, Any] = {}
        """Of interrupted episodes whose environments were let go; kept ones are held all along."""

    def __contains__(self, episode: EpisodeId) -> bool:
        return episode in self._envs

    def get(self, episode: EpisodeId) -> ContainerEnv | None:
        """Give the environment that an episode has here now."""
        return self._envs.get(episode)

    def keeps(self, episode: EpisodeId) -> bool:
        """Whether an episode has an environment here, held or let go."""
        return episode in self._envs or episode in self.leases

    async def start(self, sample: SWESample) -> ContainerEnv:
        """Start one and put the task into it. Raises EnvStartFailed and BootstrapFailed."""
        assert sample.m.runtime is not None
        began = self._runner.now()
        self._events.emit("env_starting", sample.episode)
        with boundary(EnvStartFailed):
            env = await self._builder.start(sample.m.data.container_args)
        ready = False
        try:
            with boundary(BootstrapFailed):
                await sample.m.runtime.bootstrap(env)
            ready = True
        finally:
            if not ready:
                await shielded(env.stop())
        self._envs[sample.episode] = env
        sample.m.rollout.image = str(env.template_vars().get("image", ""))
        attach(sample, env)
        await self._lease(sample, env)
        sample.m.rollout.environment_s += self._runner.now() - began
        self._events.emit("env_started", sample.episode)
        return env

    async def _lease(self, sample: SWESample, env: ContainerEnv) -> None:
        """Let another process find the environment, where single actions are kept."""
        keeper, builder, agent = self._keeper, self._builder, sample.m.agent
        if keeper is None or agent is None or not isinstance(builder, Leasing):
            return
        if driven_by_actions(agent):
            sample.m.lease = builder.lease(env)
            keeper.keep(sample)
            await keeper.kept()  # first: what no journal knows of must be swept
            await builder.hold(sample.m.lease, journal=keeper.place)

    async def stop(self, sample: SWESample) -> None:
        """Remove what an episode has, held or let go."""
        env = self._envs.pop(sample.episode, None)
        lease = self.leases.pop(sample.episode, None)
        sample.m.lease = None
        if env is not None:
            await shielded(env.stop())
        elif lease is not None and self._detaching is not None:
            await shielded(self._detaching.release(lease))
        else:
            return
        self._events.emit("env_stopped", sample.episode)

    async def detach(self, sample: SWESample) -> None:
        """Let go of an environment under a lease, where its builder can."""
        env = self._envs.get(sample.episode)
        if env is None or self._detaching is None:
            return
        try:
            with boundary(EnvDied):
                lease = await self._detaching.detach(env)
        except EpisodeError as exc:  # then the next attempt starts clean
            _log(sample, exc)
            await self.stop(sample)
        else:
            del self._envs[sample.episode]
            self.leases[sample.episode] = sample.m.lease = lease

    async def take_back(self, partial: SWESample) -> bool:
        """Attach to what was let go here; False when it is gone, and the episode starts clean."""
        lease = self.leases.get(partial.episode)
        if lease is None or self._detaching is None:
            return False
        partial.m.lease = None
        try:
            with boundary(EnvDied):
                env = await self._detaching.attach(lease)
        except EpisodeError as exc:
            _log(partial, exc)
            return False
        del self.leases[partial.episode]
        self._envs[partial.episode] = env
        return True

    async def inherit(self, partial: SWESample, lease: Any) -> bool:
        """Attach to what a dead process left under `lease`; False when it is gone."""
        assert isinstance(self._builder, Leasing)
        try:
            with boundary(EnvStartFailed):
                self._envs[partial.episode] = await self._builder.attach(lease)
                if self._keeper is not None:
                    await self._builder.hold(lease, journal=self._keeper.place)
        except EpisodeError as exc:
            logger.info("%s starts anew: %s", partial.episode, exc)
            return False
        partial.m.lease = lease
        return True

    async def close(self) -> None:
        """Remove the environments of episodes that were interrupted and never resumed.

        All of them and the builder if it is its own, whichever of them fails; raises the last
        failure.
        """
        async with AsyncExitStack() as stack:
            if self.owns_builder:
                stack.push_async_callback(self._builder.close)
            while self.leases:
                assert self._detaching is not None  # leases come from it
                stack.push_async_callback(self._detaching.release, self.leases.popitem()[1])
            while self._envs:
                stack.push_async_callback(self._envs.popitem()[1].stop)


def attach(sample: SWESample, env: ContainerEnv) -> None:
    """Show an agent that wants to see it its environment."""
    if is_env_aware(sample.m.agent):
        cast("EnvAware", sample.m.agent).attach(env)


def _log(sample: SWESample, exc: EpisodeError) -> None:
    """Keep where a failure arose: the next attempt starts clean, and no sample carries it."""
    logger.info("%s failed: %s", sample.episode, exc.ending().cause, exc_info=exc)
