"""What the events of a run tell, whatever interrupts it: all reports are made of this stream."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from world import ByChance, World, turns

from agentflow.types import Cause, EpisodeId, RolloutSample, SyncMode
from executors.data.coordinator import DataCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator


def by_kind(world: World, kind: str) -> Iterator[tuple[EpisodeId | None, dict[str, Any]]]:
    """Give the events of a kind."""
    return ((episode, facts) for k, episode, facts in world.events.events if k == kind)


async def disturbed(seed: int) -> World:
    """Run a world under preemptions and weight updates that abort."""
    world = World(seed=seed, policy=ByChance(random.Random(seed)), max_attempts=1000)

    async def disturb() -> None:
        sync, chance = world.sync(), random.Random(seed)
        while True:
            await turns(chance.randint(1, 40))
            await sync.run(chance.choice([SyncMode.ABORT, SyncMode.DRAIN]), world.new_weights)

    await world.run(disturb)
    await world.close()
    return world


@pytest.mark.parametrize("seed", range(3))
async def test_what_begins_ends_and_every_token_is_told(seed: int) -> None:
    """Generations and commands come in pairs, and their tokens are those at the engine's door."""
    world = await disturbed(seed)
    kinds = Counter(world.events.kinds())
    assert kinds["generation_started"] == kinds["generation_ended"]
    assert kinds["command_started"] == kinds["command_ended"]
    assert kinds["env_started"] == kinds["env_stopped"]
    told = sum(facts["tokens"] for _, facts in by_kind(world, "generation_ended"))
    assert told == sum(world.meter.received.values())
    aborted = sum(f["status"] == "aborted" for _, f in by_kind(world, "generation_ended"))
    assert 0 < aborted <= kinds["preempted"] + kinds["interrupted"]  # some had not begun


@pytest.mark.parametrize("seed", range(3))
async def test_an_episode_is_issued_and_ended_once_and_leased_once_an_attempt(seed: int) -> None:
    """The stream alone tells where every episode is."""
    world = await disturbed(seed)
    issued = [episode for episode, _ in by_kind(world, "issued")]
    ended = dict(by_kind(world, "ended"))
    assert len(issued) == len(set(issued)) == 12
    assert ended.keys() == set(issued)
    leases = Counter(episode for episode, _ in by_kind(world, "leased"))
    for episode, sample in world.by_episode().items():
        assert leases[episode] == 1 + sample.attempt
        assert ended[episode]["generated"] == sample.facts.generated_tokens
        assert ended[episode]["oldest_version"] == sample.weight_versions.min(
            where=sample.response_mask == 1, initial=10**6
        )


async def test_a_weight_update_tells_its_phases() -> None:
    """Paused, updated, ended: in this order, each once an update."""
    world = await disturbed(0)
    syncs = [kind for kind in world.events.kinds() if kind.startswith("sync_")]
    phases = ["sync_started", "sync_paused", "sync_updated", "sync_ended"]
    assert syncs[: len(syncs) // 4 * 4] == phases * (len(syncs) // 4)


async def test_what_comes_back_unbegun_or_is_dropped_is_told() -> None:
    """A lost worker's episode is given back; one that was begun too often is dropped."""
    world = World(tasks=0)
    coordinator = DataCoordinator(runner=world.runner, events=world.events, max_attempts=2)
    coordinator.add([RolloutSample(episode=EpisodeId(uid="u"), task={})])
    coordinator.finish()
    for worker in ("first", "second"):
        assert await coordinator.get_sample(worker) is not None
        coordinator.release_worker(worker)
    assert world.events.kinds() == ["issued", "leased", "given_back", "leased", "dropped"]
    assert world.events.events[-1][2] == {"cause": Cause.CANCELLED}
