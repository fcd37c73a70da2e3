"""The lower bound against every schedule of tiny workloads, and by hand."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, replace

import pytest

from agentflow.sim.bound import EpisodeWork, Resources, TurnWork, lower_bound
from agentflow.sim.engine_spec import EngineTimings

ROUND = EngineTimings(a=1.0, b=0.1, c=0.01, pa=2.0, pb=0.5, pg=0.001)


def turn(new: int, prefix: int, decoded: int, env_s: float = 0.0) -> TurnWork:
    """Shorten the tests."""
    return TurnWork(new=new, prefix=prefix, decoded=decoded, env_s=env_s)


def test_the_bound_of_one_episode_is_its_makespan() -> None:
    """Start 3; turn 2 + 5 + .05 + 2·1.1 + .01·(11 + 12); command 4; verdict 5: 21.48."""
    episode = EpisodeWork(turns=[turn(10, 0, 2, 4.0)], start_s=3, verify_s=5)
    bound = lower_bound([episode], Resources(timings=ROUND, slots=4))
    assert bound.chain_s == bound.seconds == pytest.approx(21.48)
    assert bound.rho(42.96) == pytest.approx(2.0)


def test_work_counts_the_fewest_steps_by_slots_or_by_kv() -> None:
    """4 episodes of 10 tokens, 2 slots: 20 steps; with KV for one context of 16, 10·(11..20)/16."""
    episodes = [EpisodeWork(turns=[turn(10, 0, 10)])] * 4
    assert lower_bound(episodes, Resources(timings=ROUND, slots=2)).fewest_steps == 20
    by_kv = lower_bound(episodes, Resources(timings=ROUND, slots=2, kv_tokens=16))
    assert by_kv.fewest_steps == -(-4 * 155 // 16)
    work = by_kv.fewest_steps + 0.1 * 40 + 0.01 * 620 + 4 * (5 + 0.05)
    assert by_kv.work_s == pytest.approx(work)
    halved = lower_bound(episodes, Resources(timings=ROUND, slots=2, kv_tokens=16, engines=2))
    assert halved.work_s == pytest.approx(work / 2)


def test_a_shared_prompt_is_paid_once_a_group() -> None:
    """Three members of a prompt of 10: one prefill of 10 and two of the last token."""
    member = EpisodeWork(turns=[turn(10, 0, 0)], group="g", shared=10)
    bound = lower_bound([member] * 3, Resources(timings=ROUND, slots=4, kv_tokens=100))
    assert bound.work_s == pytest.approx(5.05 + 2 * (0.5 + 0.001 * 9.5))
    assert bound.chain_s == pytest.approx(2 + 5.05)


def test_containers_bound_the_sum_of_chains() -> None:
    """Two chains of 7.05 + 10 + 1 and one container: 36.1; if verdicts need none: 34.1."""
    episodes = [EpisodeWork(turns=[turn(10, 0, 0, 10.0)], verify_s=1)] * 2
    resources = Resources(timings=ROUND, slots=4, containers=1)
    assert lower_bound(episodes, resources).container_s == pytest.approx(36.1)
    without = replace(resources, verify_holds_container=False)
    assert lower_bound(episodes, without).container_s == pytest.approx(34.1)


def test_a_batch_that_needs_no_prefill_overhead_meets_the_work_bound() -> None:
    """With pa = 0 two equal episodes that fill both slots take exactly W."""
    timings = replace(ROUND, pa=0.0)
    episodes = [EpisodeWork(turns=[turn(3, 0, 2)])] * 2
    resources = Resources(timings=timings, slots=2)
    best = best_makespan(episodes, resources)
    assert lower_bound(episodes, resources).work_s == pytest.approx(best)


def test_nothing_to_do_is_an_error() -> None:
    """No episode, or one without turns, has no bound."""
    with pytest.raises(ValueError, match="at least one episode"):
        lower_bound([EpisodeWork(turns=[])], Resources(timings=ROUND, slots=1))


@pytest.mark.parametrize("seed", range(25))
def test_no_schedule_beats_the_bound(seed: int) -> None:
    """Whatever is prefilled, decoded or left waiting when, the makespan is at least LB."""
    rng = random.Random(seed)
    many = bool(seed % 3)
    shared = rng.choice([0, 2])
    episodes = [
        EpisodeWork(
            turns=[
                turn(
                    rng.randint(2, 6),
                    8 * i,
                    rng.randint(0, 1 if many else 2),
                    rng.choice([0.0, 4.0]),
                )
                for i in range(1 if many else 2)
            ],
            start_s=rng.choice([0.0, 3.0]),
            verify_s=rng.choice([0.0, 2.0]),
            group="g",
            shared=shared,
        )
        for _ in range(3 if many else 2)
    ]
    resources = Resources(
        timings=ROUND,
        slots=rng.randint(1, 3),
        kv_tokens=rng.choice([None, 60]),
        containers=rng.choice([None, 1, 2]),
    )
    bound = lower_bound(episodes, resources)
    assert best_makespan(episodes, resources) >= bound.seconds - 1e-9
    assert bound.seconds >= max(bound.work_s, bound.chain_s)


# --- every schedule ---------------------------------------------------------------------------


@dataclass(frozen=True)
class At:
    """Where an episode stands: `away` until a time, `ready` for its turn, `running` or `done`."""

    place: str
    turn: int = 0
    until: float = 0.0
    left: int = 0


def best_makespan(episodes: list[EpisodeWork], resources: Resources) -> float:
    """Try every schedule of one engine and every order of starts; return the shortest makespan."""
    search = Search(episodes, resources)
    for order in set(itertools.permutations(range(len(episodes)))):
        search.order = order
        search.run(0.0, tuple(At("new") for _ in episodes), paid=False)
    return search.best


class Search:
    """Depth-first over the engine's choices, cut where it cannot improve."""

    def __init__(self, episodes: list[EpisodeWork], resources: Resources) -> None:
        self.episodes, self.resources = episodes, resources
        self.order: tuple[int, ...] = ()
        self.best = float("inf")

    def run(self, now: float, places: tuple[At, ...], *, paid: bool) -> None:
        """Explore everything that may follow."""
        places = self.settle(now, places)
        if now >= self.best:
            return
        if all(at.place == "done" for at in places):
            self.best = min(self.best, max(at.until for at in places))
            return
        ready = [i for i, at in enumerate(places) if at.place == "ready"]
        running = [i for i, at in enumerate(places) if at.place == "running"]
        room = self.resources.slots - len(running)
        for some in subsets(running):
            self.decode(now, places, some, paid=paid)
        for some in subsets(ready):
            if len(some) <= room:
                self.prefill(now, places, some, paid=paid)
        later = [at.until for at in places if at.place == "away" and at.until > now]
        if later:
            self.run(min(later), places, paid=paid)

    def settle(self, now: float, places: tuple[At, ...]) -> tuple[At, ...]:
        """Bring back who was away, and start whoever a container is free for."""
        new = list(places)
        while True:
            before = list(new)
            for i, at in enumerate(new):
                if at.place == "away" and at.until <= now:
                    over = at.turn == len(self.episodes[i].turns)
                    new[i] = At("done", until=at.until) if over else At("ready", at.turn)
            cap = self.resources.containers or len(new)
            for i in self.order:
                if sum(at.place not in {"new", "done"} for at in new) < cap:
                    new[i] = self.start(now, i) if new[i].place == "new" else new[i]
            if new == before:
                return tuple(new)

    def start(self, now: float, i: int) -> At:
        """Put an episode on its way."""
        return At("away", 0, now + self.episodes[i].start_s)

    def decode(self, now: float, places: tuple[At, ...], some: list[int], *, paid: bool) -> None:
        """Make one step of `some`."""
        context = sum(self.context(i, places[i]) for i in some)
        if self.resources.kv_tokens is not None and context > self.resources.kv_tokens:
            return
        end = now + self.resources.timings.decode_s(len(some), context)
        moved = {i: replace(places[i], left=places[i].left - 1) for i in some}
        self.run(end, self.after(end, places, moved), paid=paid)

    def prefill(self, now: float, places: tuple[At, ...], some: list[int], *, paid: bool) -> None:
        """Prefill `some` in one batch; a shared prompt is cached from the next batch on."""
        end = now + self.resources.timings.pa
        moved = {}
        for i in some:
            work = self.work(i, places[i].turn, paid=paid)
            end += self.resources.timings.part_s(work.new, work.prefix)
            moved[i] = At("running", places[i].turn, left=work.decoded)
        now_paid = paid or any(places[i].turn == 0 for i in some)
        self.run(end, self.after(end, places, moved), paid=now_paid)

    def work(self, i: int, number: int, *, paid: bool) -> TurnWork:
        """Return what the turn needs."""
        episode = self.episodes[i]
        cached = paid and number == 0 and episode.shared
        return episode.first_turn_cached() if cached else episode.turns[number]

    def context(self, i: int, at: At) -> int:
        """Tokens that the episode's next step reads."""
        work = self.episodes[i].turns[at.turn]
        return work.new + work.prefix + 1 + work.decoded - at.left

    def after(self, end: float, places: tuple[At, ...], moved: dict[int, At]) -> tuple[At, ...]:
        """Send whoever has all tokens away to the command, and the verdict behind the last."""
        new = list(places)
        for i, at in moved.items():
            new[i] = at
            if at.left == 0:
                episode, number = self.episodes[i], at.turn + 1
                until = end + episode.turns[at.turn].env_s
                until += episode.verify_s * (number == len(episode.turns))
                new[i] = At("away", number, until)
        return tuple(new)


def subsets(items: list[int]) -> list[list[int]]:
    """All of them but the empty one."""
    return [list(s) for n in range(1, len(items) + 1) for s in itertools.combinations(items, n)]
