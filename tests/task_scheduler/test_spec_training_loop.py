"""Section 5: per-iteration state, schedules, and the survivorship filters."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.types import Cause, Ending
from executors.task_scheduler import DAggerSchedule, EvalDataset, IterationPublisher, SchedulerArgs
from executors.task_scheduler.dagger_schedule import Decay
from executors.task_scheduler.filters import apply_filters

if TYPE_CHECKING:
    from agentflow.types import RolloutSample


# --- per-iteration state ----------------------------------------------------------------------


async def test_execute_rollout_publishes_before_it_fetches() -> None:
    """Whoever reads the variables while prompts are fetched sees this step's."""
    environ: dict[str, str] = {}
    seen: list[dict[str, str]] = []

    class Source:
        """Looks at the environment when it is asked."""

        def get_samples(self, count: int) -> list[list[RolloutSample]]:
            """Give one group."""
            seen.append(dict(environ))
            return [[parts.sample("u")]]

        def state_dict(self) -> dict[str, object]:
            """Nothing to keep."""
            return {}

        def load_state_dict(self, state: object) -> None:
            """Nothing to load."""

    handler = parts.Handler()
    publisher = IterationPublisher(DAggerSchedule(decay_steps=4), environ=environ)
    it = parts.scheduler(
        parts.spec(handler),
        args=SchedulerArgs(rollout_batch_size=1),
        source=Source(),
        publisher=publisher,
    )
    await it.execute_rollout(1)
    assert seen == [{"STACX_ROLLOUT_ID": "1", "STACX_DAGGER_BETA": "0.75"}]
    assert handler.contexts["u#0"].iteration.beta == 0.75
    assert handler.contexts["u#0"].iteration.rollout_id == 1


def test_t_max_is_published_only_where_it_is_ramped() -> None:
    """A statically set tail length is not overwritten with T_max=0."""
    environ = {"STACX_DAGGER_T_MAX": "12"}
    state = IterationPublisher(DAggerSchedule(), environ=environ).rollout(3)
    assert environ["STACX_DAGGER_T_MAX"] == "12"
    assert state.t_max == 12
    ramp = DAggerSchedule(t_max_start=2, t_max_step=3, t_max_end=9)
    state = IterationPublisher(ramp, environ=environ).rollout(2)
    assert environ["STACX_DAGGER_T_MAX"] == "8"
    assert state.t_max == 8


async def test_execute_eval_pops_beta_so_that_the_student_is_alone() -> None:
    """β=0 unless STACX_DAGGER_EVAL_BETA injects it again."""
    environ = {"STACX_DAGGER_BETA": "0.5"}
    handler = parts.Handler()
    publisher = IterationPublisher(DAggerSchedule(), environ=environ)
    sets = [EvalDataset(name="A", rows=parts.rows(1))]
    it = parts.scheduler(parts.spec(handler), eval_datasets=sets, publisher=publisher)
    await it.execute_eval(4)
    assert "STACX_DAGGER_BETA" not in environ
    assert handler.contexts["A/task-0#0"].iteration.beta == 0.0
    assert handler.contexts["A/task-0#0"].iteration.evaluating
    environ["STACX_DAGGER_EVAL_BETA"] = "0.25"
    await it.execute_eval(5)
    assert environ["STACX_DAGGER_BETA"] == "0.25"
    assert handler.contexts["A/task-0#0"].iteration.beta == 0.25


@pytest.mark.parametrize("value", ["1.5", "-0.1", "nan", "inf", "much"])
def test_a_variable_that_is_no_probability_is_named(value: str) -> None:
    """β set by hand, against the advice, and that of evaluations, each by its own name."""
    with pytest.raises(ConfigError, match=f"STACX_DAGGER_BETA is '{value}'; it must be a prob"):
        IterationPublisher(environ={"STACX_DAGGER_BETA": value}).rollout(0)
    with pytest.raises(ConfigError, match=f"STACX_DAGGER_EVAL_BETA is '{value}'"):
        IterationPublisher(environ={"STACX_DAGGER_EVAL_BETA": value}).evaluation(0)


def test_a_tail_length_that_is_no_number_is_named() -> None:
    """The same for T_max."""
    with pytest.raises(ConfigError, match="STACX_DAGGER_T_MAX is 'x'"):
        IterationPublisher(environ={"STACX_DAGGER_T_MAX": "x"}).rollout(0)


# --- schedules --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("decay", "betas"),
    [
        (Decay.LINEAR, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]),
        (Decay.COSINE, [1.0, 0.6 + 0.4 * math.cos(math.pi / 4), 0.6, None, 0.2, 0.2]),
        (Decay.EXPONENTIAL, [1.0, 0.5, 0.25, 0.2, 0.2, 0.2]),
        (Decay.STEP, [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]),
    ],
)
def test_beta_decays_and_stays_above_its_end(decay: Decay, betas: list[float | None]) -> None:
    """Four shapes, six rollouts."""
    schedule = DAggerSchedule(decay=decay, beta_end=0.2, decay_steps=4, rate=0.5, step_every=2)
    for rollout_id, beta in enumerate(betas):
        if beta is not None:
            assert schedule.beta(rollout_id) == pytest.approx(beta)


def test_schedules_at_their_boundaries() -> None:
    """The first and the last rollout of a stair, and of the fall."""
    stairs = DAggerSchedule(decay=Decay.STEP, rate=0.5, step_every=10)
    assert [stairs.beta(i) for i in (0, 9, 10, 19, 20)] == [1.0, 1.0, 0.5, 0.5, 0.25]
    for decay in (Decay.LINEAR, Decay.COSINE):
        fall = DAggerSchedule(decay=decay, decay_steps=10, beta_end=0.1)
        assert (fall.beta(0), fall.beta(10), fall.beta(10**9)) == (1.0, 0.1, 0.1)
        assert 0.1 < fall.beta(9) < fall.beta(1) < 1.0
    assert DAggerSchedule(decay=Decay.EXPONENTIAL).beta(10**9) == 0.0


def test_t_max_is_a_straight_ramp_with_an_end() -> None:
    """Linear, then flat."""
    schedule = DAggerSchedule(t_max_start=1, t_max_step=2, t_max_end=6)
    assert [schedule.t_max(i) for i in range(5)] == [1, 3, 5, 6, 6]


@pytest.mark.parametrize(
    "wrong",
    [
        {"beta_start": 0.1, "beta_end": 0.2},
        {"beta_start": 1.1},
        {"decay_steps": 0},
        {"rate": 0.0},
        {"t_max_step": -1},
        {"t_max_start": 3, "t_max_end": 2},
        {"beta_start": float("nan")},
        {"beta_end": -0.1},
        {"rate": float("nan")},
    ],
)
def test_a_schedule_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    """Each limit is checked."""
    with pytest.raises(ConfigError, match="DAggerSchedule"):
        DAggerSchedule(**wrong)  # type: ignore[arg-type]


# --- filters ----------------------------------------------------------------------------------


def group(*samples: tuple[float, Cause]) -> list[RolloutSample]:
    """Make ended samples of (reward, cause)."""
    made = []
    for index, (reward, cause) in enumerate(samples):
        sample = parts.sample("g", index)
        sample.rewards, sample.ending = reward, Ending(cause=cause, phase="run")
        made.append(sample)
    return made


def indices(groups: list[list[RolloutSample]]) -> list[list[int]]:
    """Tell who is left."""
    return [[sample.episode.replica_index for sample in g] for g in groups]


GROUP = (
    (1.0, Cause.SUBMITTED),
    (0.0, Cause.SUBMITTED),
    (1.0, Cause.STEP_LIMIT),
    (0.0, Cause.STEP_LIMIT),
)


def test_rejection_comes_first_and_finish_only_sees_its_survivors() -> None:
    """The counts show the order: what was rejected is not unfinished as well."""
    filtered = apply_filters([group(*GROUP)], min_reward=0.5, finish_only=True)
    assert indices(filtered.groups) == [[0]]
    assert (filtered.rejected, filtered.unfinished) == (2, 1)


def test_the_filters_are_independent() -> None:
    """Each alone, and neither."""
    groups = [group(*GROUP)]
    assert indices(apply_filters(groups, min_reward=0.5, finish_only=False).groups) == [[0, 2]]
    assert indices(apply_filters(groups, min_reward=None, finish_only=True).groups) == [[0, 1]]
    assert indices(apply_filters(groups, min_reward=None, finish_only=False).groups) == [
        [0, 1, 2, 3]
    ]


def test_a_group_without_survivors_is_left_out_and_masked_samples_are_rejected() -> None:
    """Nobody judged what is masked."""
    masked = group((0.0, Cause.ENV_DIED))
    masked[0].remove_sample = True
    filtered = apply_filters([masked, group(GROUP[0])], min_reward=0.0, finish_only=False)
    assert indices(filtered.groups) == [[0]]
    assert filtered.rejected == 1
