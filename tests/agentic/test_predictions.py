"""Predictions and snapshots: from the coordinator's URL to the order of service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest
from world import World, assert_same_tokens, turns

from agentflow.types import SyncMode
from executors.hooks import CoordinatorHooks, PredictionFailed
from priority.policies import LongestPredictedFirst

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agentflow.swe.action_level_flow import ActionLevelSWEAgentFlow
    from agentflow.types import Message
    from priority.policies import Priority, Standing
    from priority.snapshot import PrioritySnapshot


@dataclass
class Predictor:
    """Predicts by the number of messages; takes its time, or fails, as told."""

    ready: Callable[[int], bool] = lambda _: True
    """Whether the answer to the n-th question may come."""
    fails: bool = False
    asked: list[int] = field(default_factory=list)

    async def predict(self, messages: Sequence[Message]) -> float:
        """Answer."""
        self.asked.append(len(messages))
        number = len(self.asked)
        while not self.ready(number):
            await turns(1)
        if self.fails:
            raise PredictionFailed("no answer")
        return 1000.0 - len(messages)


class Told:
    """Longest first; remembers what it was told of episodes."""

    preempts = False

    def __init__(self) -> None:
        self.known: list[float | None] = []

    def classify(self, standing: Standing) -> Priority:
        """Note the prediction."""
        self.known.append(standing.predicted)
        return LongestPredictedFirst().classify(standing)


def predicted(
    world: World, predictor: Predictor, *, url: str | None = "http://p"
) -> CoordinatorHooks:
    """Let the world's flow predict; returns its hooks."""
    urls: list[str] = []

    def connect(given: str) -> Predictor:
        urls.append(given)
        assert urls == ["http://p"], "connected twice, or to something else"
        return predictor

    world.coordinator._predictor_url = url
    flow: ActionLevelSWEAgentFlow = world.flow  # type: ignore[assignment]
    hooks = flow._hooks = CoordinatorHooks(world.coordinator, "w", connect=connect)
    return hooks


async def test_every_command_is_used_to_predict_and_the_policy_hears_of_it() -> None:
    """One connection to the URL that the coordinator knows; one question a command."""
    policy = Told()
    world = World(seed=0, policy=policy)
    predictor = Predictor()
    predicted(world, predictor)
    await world.run()
    await world.close()
    world.check_closed()
    assert len(predictor.asked) == world.events.kinds().count("command_started") > 0
    assert set(policy.known) > {None, 998.0}
    assert world.coordinator.gauges()["stale_predictions"] == 0


@pytest.mark.parametrize("url", ["http://p", None])
async def test_without_a_prediction_episodes_are_served_as_they_come(url: str | None) -> None:
    """No URL, or a predictor that fails each time: the same samples, and failures are counted."""
    world, plain = World(seed=0), World(seed=0)
    predictor = Predictor(fails=True)
    hooks = predicted(world, predictor, url=url)
    await world.run()
    await plain.run()
    await world.close()
    await plain.close()
    world.check_closed()
    assert_same_tokens(world, plain)
    assert hooks.failed == len(predictor.asked)
    assert bool(predictor.asked) == (url is not None)


async def test_an_answer_that_comes_after_the_next_generation_began_changes_nothing() -> None:
    """It was made for an earlier turn; the scheduler tells by the generation's number."""
    policy = Told()
    world = World(seed=0, tasks=1, n=1, lengths={"t0": 4}, policy=policy)

    def begun(number: int) -> bool:
        return world.events.kinds().count("generation_started") > number

    predictor = Predictor(ready=begun)
    predicted(world, predictor)
    await world.run()
    await world.close()
    world.check_closed()
    assert len(predictor.asked) == 3
    assert set(policy.known) == {None}


async def test_an_answer_that_comes_after_an_interruption_keeps_no_later_one_out() -> None:
    """It was made for another attempt, whose turns were counted by themselves."""
    policy = Told()
    world = World(seed=0, tasks=1, n=1, lengths={"t0": 4}, policy=policy)

    def resumed() -> bool:
        kinds = world.events.kinds()
        return "resumed" in kinds and "generation_started" in kinds[kinds.index("resumed") :]

    predictor = Predictor(ready=lambda number: number > 1 or resumed())
    predicted(world, predictor)

    async def disturb() -> None:
        while not (predictor.asked and world.engine.gauges()["running"]):
            await turns(1)
        await world.sync().run(SyncMode.ABORT, world.new_weights)
        await asyncio.Event().wait()

    await world.run(disturb)
    await world.close()
    world.check_closed()
    assert resumed()
    first, second, *_ = predictor.asked
    assert 1000.0 - first not in policy.known
    assert 1000.0 - second in policy.known
    assert world.coordinator.gauges()["stale_predictions"] == 1


async def test_the_snapshot_is_there_before_the_first_episode_and_is_refreshed() -> None:
    """The flow ranks by it from the start; it hears of endings while the run goes."""
    world = World(seed=0, tasks=2, n=2)
    seen: list[PrioritySnapshot] = []
    use_snapshot = world.flow.use_snapshot  # type: ignore[attr-defined]

    def noted(snapshot: PrioritySnapshot) -> None:
        seen.append(snapshot)
        use_snapshot(snapshot)
        world.worker.executor._refresh_at = float("-inf")  # type: ignore[union-attr]  # due at once

    world.flow.use_snapshot = noted  # type: ignore[attr-defined]
    run = asyncio.ensure_future(world.worker.run_here())
    await turns(1)
    assert [s.group_left for s in seen] == [{"t0": 2, "t1": 2}]
    assert not world.flow._episodes  # type: ignore[attr-defined]
    await run
    await world.close()
    assert len(seen) > 1
    assert seen[-1].group_left == {}
    assert [s.version for s in seen] == sorted(s.version for s in seen)
