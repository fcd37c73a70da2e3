"""ActionScheduler, events in and commands out: who goes next, who is preempted, for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentflow.scheduling import AbortReason, ActionScheduler, Event, Limits, Stage, WorkItem
from agentflow.scheduling.stages import IllegalTransition
from agentflow.swe.kv_housing import KVHousing
from agentflow.types import EpisodeId
from priority.policies import Fcfs, FcfsPreempt, LongestPredictedFirst, Policy
from priority.residency import Residency
from priority.snapshot import PrioritySnapshot

if TYPE_CHECKING:
    from collections.abc import Iterable


def scheduler(policy: Policy | None = None, **limits: float) -> ActionScheduler:
    """Make a scheduler whose limits are wide unless given."""
    wide: dict[str, float] = {
        "generations": 1,
        "live": 99,
        "admitted": 99,
        "starts": 99,
        "commands": 99,
        "rewards": 99,
    }
    return ActionScheduler(Limits(**(wide | limits)), policy or Fcfs())  # type: ignore[arg-type]


def arrive(s: ActionScheduler, n: int) -> list[WorkItem]:
    """Submit `n` episodes and start their environments."""
    items = [s.submit(EpisodeId(uid=str(i)), 0.0) for i in range(n)]
    s.interact(0.0)
    for item in items:
        s.advance(item, Event.STARTED, 0.0)
    return items


def names(items: Iterable[WorkItem]) -> list[str]:
    """Whose items they are."""
    return [item.episode.uid for item in items]


def aborted(s: ActionScheduler, now: float = 1.0) -> list[str]:
    """Whose generation is aborted, once free slots are used."""
    s.generate(now)
    return names(s.preempt(now))


def begin(s: ActionScheduler, now: float = 0.0) -> None:
    """Let everything begin that may."""
    s.generate(now)
    s.preempt(now)
    s.interact(now)


def generation_ended(s: ActionScheduler, item: WorkItem, now: float = 0.0) -> None:
    """End a generation with a command, and run that: the item wants its next generation."""
    s.advance(item, Event.NEEDS_ENV_STEP, now)
    begin(s, now)
    s.advance(item, Event.NEEDS_GENERATION, now)


def test_slots_are_filled_in_order_of_arrival() -> None:
    """Under fcfs the pending queue is served first come, first served, up to the slots."""
    s = scheduler(generations=2)
    arrive(s, 3)
    assert names(s.generate(0.0)) == ["0", "1"]


def test_a_resumed_item_goes_before_a_pending_one() -> None:
    """An episode that is under way goes before one that has not begun."""
    s = scheduler()
    first, _ = arrive(s, 2)
    assert names(s.generate(0.0)) == ["0"]
    s.advance(first, Event.NEEDS_GENERATION, 1.0)
    assert names(s.generate(0.0)) == ["0"]


def test_a_pending_item_that_waited_too_long_goes_first() -> None:
    """Ageing stands above the order of the queues."""
    s = scheduler(age_s=10)
    first, _ = arrive(s, 2)
    begin(s)
    s.advance(first, Event.NEEDS_GENERATION, 11.0)
    assert names(s.generate(11.0)) == ["1"]


def test_a_free_slot_is_used_before_anything_is_preempted() -> None:
    """With a slot free, a high item gets it and nobody is aborted, whatever is asked first."""
    s = scheduler(FcfsPreempt(window=1), generations=2)
    high, low = arrive(s, 2)
    begin(s)
    s.advance(high, Event.NEEDS_GENERATION, 1.0)
    assert low.stage is Stage.GENERATING
    assert s.preempt(1.0) == []
    assert names(s.generate(1.0)) == ["0"]


def busy_with_low(
    *, preempts: bool = True, **limits: float
) -> tuple[ActionScheduler, list[WorkItem]]:
    """Two high items (0, 1) act in their environments while low ones (2, 3) hold both slots."""
    s = scheduler(FcfsPreempt(window=2, preempts=preempts), generations=2, **limits)
    items = arrive(s, 4)
    begin(s)
    s.advance(items[0], Event.NEEDS_ENV_STEP, 0.0)
    s.advance(items[1], Event.NEEDS_ENV_STEP, 0.0)
    begin(s)
    assert [i.stage for i in items[2:]] == [Stage.GENERATING] * 2
    return s, items


def test_the_newest_low_generation_is_the_victim() -> None:
    """What started last loses the least."""
    s, items = busy_with_low()
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    assert aborted(s) == ["3"]


def test_without_preemption_a_high_item_waits_for_a_slot_and_gets_the_next() -> None:
    """It is the first in line, and nobody is aborted for it."""
    s, items = busy_with_low(preempts=False)
    s.advance(items[1], Event.NEEDS_GENERATION, 1.0)
    assert aborted(s) == []
    s.advance(items[2], Event.NEEDS_GENERATION, 2.0)
    assert names(s.generate(2.0)) == ["1"]


def test_a_pause_preempts_nobody() -> None:
    """A generation that an update leaves to the engine is aborted for nobody until it is over."""
    s, items = busy_with_low()
    s.paused = True
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    assert aborted(s) == []
    s.paused = False
    assert aborted(s) == ["3"]


def test_a_freed_slot_goes_to_the_item_that_it_was_freed_for() -> None:
    """With two preemptions under way, each slot goes to its own cause, in whatever order."""
    s, items = busy_with_low()
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    s.advance(items[1], Event.NEEDS_GENERATION, 1.0)
    assert aborted(s, 1.0) == ["3", "2"]
    s.advance(items[2], Event.NEEDS_GENERATION, 1.0)
    assert names(s.generate(1.0)) == ["1"]
    s.advance(items[3], Event.NEEDS_GENERATION, 1.0)
    assert names(s.generate(1.0)) == ["0"]


def test_a_promise_ends_with_the_item_it_was_made_to() -> None:
    """If the cause fails while its victim is being aborted, the slot is anybody's."""
    s, items = busy_with_low()
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    begin(s, 1.0)
    s.advance(items[0], Event.FAILED, 1.0)
    s.advance(items[3], Event.NEEDS_GENERATION, 1.0)
    assert names(s.generate(1.0)) == ["3"]
    s.check()


def test_a_victim_is_preempted_a_bounded_number_of_times() -> None:
    """After its last preemption an item is left alone, and another one is taken."""
    s, items = busy_with_low(preemptions=1)
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    begin(s, 1.0)
    s.advance(items[3], Event.NEEDS_GENERATION, 1.0)
    begin(s, 1.0)
    s.advance(items[0], Event.NEEDS_ENV_STEP, 1.0)
    begin(s, 1.0)
    assert items[3].stage is Stage.GENERATING
    s.advance(items[1], Event.NEEDS_GENERATION, 1.0)
    assert aborted(s, 1.0) == ["2"]


def test_high_items_do_not_preempt_each_other() -> None:
    """With only high generations in flight there is no victim."""
    s = scheduler(FcfsPreempt(window=9))
    items = arrive(s, 2)
    begin(s)
    s.advance(items[0], Event.NEEDS_ENV_STEP, 0.0)
    begin(s)
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    assert items[1].stage is Stage.GENERATING
    assert aborted(s) == []


def test_a_weight_sync_outranks_a_preemption() -> None:
    """One generation hit by both is aborted once, and ends for the sync."""
    s, items = busy_with_low()
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    begin(s, 1.0)
    s.paused = True
    assert names(s.interrupt_all()) == ["2"]
    assert items[3].aborting is AbortReason.WEIGHT_SYNC
    s.advance(items[3], Event.INTERRUPTED, 1.0)
    assert s.generate(1.0) == []
    s.paused = False
    assert names(s.generate(1.0)) == ["0"]


def test_a_pause_holds_generations_only() -> None:
    """Starts, commands and rewards go on during a weight sync."""
    s = scheduler(generations=3)
    items = arrive(s, 3)
    begin(s)
    s.paused = True
    s.advance(items[0], Event.NEEDS_ENV_STEP, 0.0)
    s.advance(items[1], Event.TERMINATED, 0.0)
    s.advance(items[1], Event.FINALIZED, 0.0)
    s.submit(EpisodeId(uid="new"), 0.0)
    assert s.generate(0.0) == []
    assert [i.stage for i in s.interact(0.0)] == [Stage.REWARDING, Stage.ACTING, Stage.STARTING]


def test_starts_run_ahead_of_live_episodes_only_so_far() -> None:
    """More than C environments may be starting, but only C episodes may be live."""
    s = scheduler(generations=9, live=2, admitted=3)
    for i in range(5):
        s.submit(EpisodeId(uid=str(i)), 0.0)
    starting = s.interact(0.0)
    assert len(starting) == 3
    for item in starting:
        s.advance(item, Event.STARTED, 0.0)
    assert names(s.generate(0.0)) == ["0", "1"]
    s.advance(starting[0], Event.TERMINATED, 0.0)
    s.advance(starting[0], Event.REWARDED, 0.0)
    assert names(s.generate(0.0)) == ["2"]
    assert names(s.interact(0.0)) == ["3"]


def test_longest_predicted_goes_first_once_it_is_known() -> None:
    """A prediction that arrives while an item waits moves it in its queue."""
    s = scheduler(LongestPredictedFirst())
    items = arrive(s, 3)
    begin(s)
    for tokens, item in zip((5.0, 9.0), items[1:], strict=True):
        s.predict(item, tokens, generation=0)
    s.advance(items[0], Event.TERMINATED, 0.0)
    assert names(s.generate(0.0)) == ["2"]


def test_environments_start_by_the_policy_where_they_are_few() -> None:
    """What is known of episodes that have not begun decides who begins: here the longest."""
    s = scheduler(LongestPredictedFirst(), starts=1)
    lengths = {EpisodeId(uid=str(i)): tokens for i, tokens in enumerate((5.0, 9.0, 7.0))}
    s.snapshot = PrioritySnapshot(version=1, predicted=lengths)
    for episode in lengths:
        s.submit(episode, 0.0)
    (longest,) = s.interact(0.0)
    assert longest.episode.uid == "1"
    s.advance(longest, Event.STARTED, 1.0)
    assert names(s.interact(1.0)) == ["2"]


def test_rewards_go_before_commands_and_both_before_starts() -> None:
    """They all want environments: a finished episode does not wait for one that begins."""
    s = scheduler(generations=3)
    items = arrive(s, 2)
    begin(s)
    s.submit(EpisodeId(uid="new"), 0.0)
    s.advance(items[0], Event.NEEDS_ENV_STEP, 0.0)
    s.advance(items[1], Event.TERMINATED, 0.0)
    s.advance(items[1], Event.FINALIZED, 0.0)
    assert names(s.interact(0.0)) == ["1", "0", "new"]


def test_each_stage_has_its_own_limit() -> None:
    """Starts, commands and rewards each wait for one of their own kind to end."""
    s = scheduler(generations=9, starts=1, commands=1, rewards=1)
    items = [s.submit(EpisodeId(uid=str(i)), 0.0) for i in range(4)]
    for item in items:
        assert s.interact(0.0) == [item]
        assert s.interact(0.0) == []
        s.advance(item, Event.STARTED, 0.0)
    s.generate(0.0)
    for item in items[:2]:
        s.advance(item, Event.NEEDS_ENV_STEP, 0.0)
    for item in items[2:]:
        s.advance(item, Event.TERMINATED, 0.0)
        s.advance(item, Event.FINALIZED, 0.0)
    assert names(s.interact(0.0)) == ["2", "0"]
    assert s.interact(0.0) == []
    s.advance(items[0], Event.NEEDS_GENERATION, 0.0)
    assert names(s.interact(0.0)) == ["1"]
    s.advance(items[2], Event.REWARDED, 0.0)
    assert names(s.interact(0.0)) == ["3"]


def test_a_stale_prediction_is_discarded() -> None:
    """What was predicted for an earlier generation says nothing about this one."""
    s = scheduler(LongestPredictedFirst())
    (item,) = arrive(s, 1)
    begin(s)
    s.predict(item, 7.0, generation=0)
    assert item.told is None
    s.predict(item, 7.0, generation=1)
    assert item.told == 7.0


def test_an_illegal_event_raises_and_changes_nothing() -> None:
    """The table is the only way to move."""
    s = scheduler()
    (item,) = arrive(s, 1)
    with pytest.raises(IllegalTransition, match="rewarded is not allowed at stage pending"):
        s.advance(item, Event.REWARDED, 0.0)
    assert item.stage is Stage.PENDING
    assert names(s.generate(0.0)) == ["0"]


def test_a_resumed_episode_waits_for_no_start_and_goes_before_its_equals() -> None:
    """It holds an environment already, for which starts may be waiting."""
    s = scheduler(generations=1, starts=1)
    arrive(s, 1)
    s.submit(EpisodeId(uid="new"), 0.0)
    begin(s)
    resumed = s.submit(EpisodeId(uid="resumed"), 0.0, resumes=True)
    assert resumed.stage is Stage.PENDING
    assert names(s.generate(0.0)) == []  # the only slot is taken
    s.check()


def test_resumed_episodes_are_generated_before_those_that_wait_for_their_first_turn() -> None:
    """Partial work first."""
    s = scheduler(generations=1)
    first, *_ = arrive(s, 3)
    begin(s)
    s.submit(EpisodeId(uid="resumed"), 0.0, resumes=True)
    s.advance(first, Event.NEEDS_ENV_STEP, 0.0)
    assert names(s.generate(0.0)) == ["resumed"]


def test_environments_of_interrupted_episodes_count_as_admitted() -> None:
    """A weight sync does not let more environments live than the limit says."""
    s = scheduler(admitted=3)
    s.detached = 2
    for i in range(3):
        s.submit(EpisodeId(uid=str(i)), 0.0)
    assert names(s.interact(0.0)) == ["0"]


# --- generations that begin together, and KV memory -------------------------------------------


def test_slots_are_filled_together_while_more_wait_and_at_once_when_few_do() -> None:
    """One prefill for two; the last one waits for nobody."""
    s = scheduler(generations=4, together=2)
    items = arrive(s, 6)
    assert names(s.generate(0.0)) == ["0", "1", "2", "3"]
    s.advance(items[0], Event.NEEDS_ENV_STEP, 1.0)
    assert s.generate(1.0) == []
    s.advance(items[1], Event.NEEDS_ENV_STEP, 2.0)
    assert names(s.generate(2.0)) == ["4", "5"]
    s.advance(items[2], Event.NEEDS_GENERATION, 3.0)
    assert names(s.generate(3.0)) == ["2"]


def test_a_high_item_does_not_wait_for_company() -> None:
    """It takes the one slot that is free."""
    s = scheduler(FcfsPreempt(window=1, preempts=False), generations=2, together=2)
    items = arrive(s, 4)
    s.generate(0.0)
    s.advance(items[0], Event.NEEDS_GENERATION, 1.0)
    assert names(s.generate(1.0)) == ["0"]


def hold(s: ActionScheduler, item: WorkItem, own: int) -> None:
    """End a generation and its command with so many tokens behind a prompt of 100."""
    assert isinstance(s.housing, KVHousing)
    s.housing.holds(item, prompt=100, own=own)
    generation_ended(s, item)


def test_new_episodes_wait_until_the_engine_has_memory_for_them() -> None:
    """Two contexts fill it; the third enters when one has ended."""
    s = scheduler(generations=3)
    s.housing = housing = KVHousing(Residency(300, share=1.0))
    first, second, third = arrive(s, 3)
    s.advance(first, Event.DISPATCHED, 0.0)
    s.advance(second, Event.DISPATCHED, 0.0)
    housing.holds(first, prompt=100, own=20)
    housing.holds(second, prompt=100, own=20)
    assert s.generate(0.0) == []
    s.advance(first, Event.FAILED, 0.0)
    assert names(s.generate(0.0)) == ["2"]
    assert housing.residency is not None
    assert third in housing.residency


def test_an_aged_item_that_the_engine_has_no_memory_for_is_not_passed_by_smaller_ones() -> None:
    """The one with the better rank would fit; it is the older one's turn, so both wait."""
    s = scheduler(LongestPredictedFirst(), generations=3, age_s=10)
    s.housing = housing = KVHousing(Residency(400, share=1.0))
    inside, old, young = arrive(s, 3)
    for item, tokens, own in ((old, 1.0, 300), (young, 9.0, 0)):
        s.predict(item, tokens, generation=0)
        housing.holds(item, prompt=100, own=own)
    s.advance(inside, Event.DISPATCHED, 0.0)
    housing.holds(inside, prompt=100, own=20)
    assert s.generate(11.0) == []
    s.advance(inside, Event.FAILED, 11.0)
    assert names(s.generate(11.0)) == ["1"]


def test_the_newest_is_parked_when_contexts_have_outgrown_memory_and_comes_back_first() -> None:
    """The oldest goes on; the parked one goes before those that never began."""
    s = scheduler(generations=2)
    s.housing = KVHousing(Residency(1000, share=1.0))
    first, second, _ = arrive(s, 3)
    assert names(s.generate(0.0)) == ["0", "1"]
    hold(s, first, 300)
    assert first.stage is Stage.RESUMING
    s.advance(first, Event.DISPATCHED, 0.0)
    hold(s, second, 600)
    assert second.stage is Stage.PENDING
    hold(s, first, 500)
    s.advance(first, Event.DISPATCHED, 0.0)
    assert s.generate(0.0) == []
    s.advance(first, Event.TERMINATED, 0.0)
    assert names(s.generate(0.0))[0] == "1"
    s.check()
