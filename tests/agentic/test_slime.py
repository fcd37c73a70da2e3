"""slime's rollout function: shapes, groups, what goes back, and rewards without what failed."""

from __future__ import annotations

import ast
import json
import os
import random
import statistics
import subprocess
import sys
import types
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import slime_stand_in as stand_in
from holding import Holding, rows
from slime_stand_in import DataSource, Sample
from world import Envs

from agentflow.errors import ConfigError
from agentflow.types import EpisodeId
from executors.trainers import slime
from executors.trainers.slime_samples import sampling_of, slime_config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

N = 3


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let slime's records be found where slime has them."""
    for name in ("slime", "slime.utils", "slime.rollout"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    for name in ("slime.utils.types", "slime.rollout.base_types"):
        monkeypatch.setitem(sys.modules, name, stand_in)


def slime_args(**more: Any) -> Namespace:
    """Give slime's arguments, as far as they are read."""
    values: dict[str, Any] = {
        "n_samples_per_prompt": N,
        "rollout_batch_size": 2,
        "over_sampling_batch_size": None,
        "rollout_temperature": 0.8,
        "rollout_top_p": 1.0,
        "rollout_top_k": -1,
        "rollout_max_response_len": 200,
        "rollout_stop": None,
        "rollout_stop_token_ids": None,
        "reward_key": None,
        "advantage_estimator": "grpo",
        "rewards_normalization": True,
        "grpo_std_normalization": True,
        "eval_datasets": [],
        "metadata_key": "metadata",
        "n_samples_per_eval_prompt": 1,
        "hf_checkpoint": None,
    }
    return Namespace(**{**values, **more})


@pytest.fixture
def rolled() -> Iterator[Callable[..., slime.SlimeRollouts]]:
    """Make rollouts over the small world, and take them down."""
    made: list[slime.SlimeRollouts] = []

    def make(args: Namespace, **holding: Any) -> slime.SlimeRollouts:
        made.append(slime.SlimeRollouts(args, backend=Holding(**holding).backend))
        return made[-1]

    yield make
    for one in made:
        one.close()


def broken(*names: str) -> Envs:
    """Environments that do not start, for these episodes."""
    envs = Envs(random.Random(0))
    for name in names:
        uid, _, index = name.partition("#")
        envs.broken.add(EpisodeId(uid=uid, replica_index=int(index)).key)
    return envs


def check_shapes(sample: Sample) -> None:
    """Assert what slime's conversion to training data relies on."""
    assert sample.loss_mask is not None
    assert sample.rollout_log_probs is not None
    assert len(sample.loss_mask) == len(sample.rollout_log_probs) == sample.response_length > 0
    assert len(sample.tokens) > sample.response_length
    pairs = zip(sample.loss_mask, sample.rollout_log_probs, strict=True)
    assert all(logprob == 0.0 for mask, logprob in pairs if not mask)
    assert all(type(token) is int for token in sample.tokens)
    assert all(type(version) is str for version in sample.weight_versions)
    assert type(sample.reward) is float
    assert sample.status is not Sample.Status.PENDING


def test_a_batch_comes_in_whole_groups_with_every_array(
    rolled: Callable[..., slime.SlimeRollouts],
) -> None:
    """As many groups as asked for, in the order of the data source, the samples it gave."""
    source = DataSource(rows("a", "b", "c"), n=N)
    output = rolled(slime_args()).train(7, source)
    assert isinstance(output, stand_in.RolloutFnTrainOutput)
    assert [[s.index for s in group] for group in output.samples] == [[0, 1, 2], [3, 4, 5]]
    for sample in (sample for group in output.samples for sample in group):
        check_shapes(sample)
        assert sample.status is Sample.Status.COMPLETED
        assert sample.metadata["start_rollout_id"] == 7
        assert sample.metadata["agentflow"]["cause"] == "submitted"
        assert sample.weight_versions == ["0"]
        assert sample.non_generation_time > 0
        assert sample.response
        assert (sample.prompt, sample.rollout_id) == ("p", None)
    assert output.metrics["rollout/agentflow/turns"] == 2
    assert source.buffer == []


def test_what_the_infrastructure_failed_stays_in_its_group_with_arrays(
    rolled: Callable[..., slime.SlimeRollouts],
) -> None:
    """A masked dummy of one prompt and one response token, not trained on."""
    rollouts = rolled(slime_args(), envs=broken("a#1"), groups={"retries": 0})
    output = rollouts.train(0, DataSource(rows("a", "b"), n=N))
    first = output.samples[0]
    assert [sample.remove_sample for sample in first] == [False, True, False]
    for sample in first:
        check_shapes(sample)
    dummy = first[1]
    assert (dummy.status, dummy.reward) == (Sample.Status.FAILED, 0.0)
    assert (dummy.loss_mask, dummy.rollout_log_probs, len(dummy.tokens)) == ([0], [0.0], 2)
    assert (dummy.weight_versions, dummy.metadata["agentflow"]["cause"]) == ([], "env_start_failed")
    assert output.metrics["rollout/agentflow/masked"] == 1


def test_what_is_begun_beyond_the_batch_goes_back_aborted_and_comes_again(
    rolled: Callable[..., slime.SlimeRollouts],
) -> None:
    """The groups that were cut short are whole, and are the first of the next batch."""
    source = DataSource([*rows("a", "b"), *rows("long", turns=40), *rows("c")], n=N)
    rollouts = rolled(slime_args(over_sampling_batch_size=4))
    first = rollouts.train(3, source)
    assert len(first.samples) == 2
    back = list(source.buffer)
    assert len(back) == 2
    assert first.metrics["rollout/agentflow/unused_groups"] == 2
    for sample in (sample for group in back for sample in group):
        assert (sample.status, sample.tokens) == (Sample.Status.ABORTED, [])
        assert sample.metadata["start_rollout_id"] == 3
    rollouts._args.over_sampling_batch_size = None
    second = rollouts.train(4, source)
    assert {id(s) for group in second.samples for s in group} == {id(s) for g in back for s in g}
    for sample in (sample for group in second.samples for sample in group):
        check_shapes(sample)
        assert sample.metadata["start_rollout_id"] == 3


def test_a_dead_group_is_replaced_by_another(rolled: Callable[..., slime.SlimeRollouts]) -> None:
    """The batch is full all the same, and the metrics say what was lost."""
    rollouts = rolled(
        slime_args(), envs=broken(*(f"a#{i}" for i in range(N))), groups={"retries": 0}
    )
    output = rollouts.train(0, DataSource(rows("a", "b", "c"), n=N))
    names = [group[0].metadata["instance_id"] for group in output.samples]
    assert names == ["b", "c"]
    assert output.metrics["rollout/agentflow/dead_groups"] == 1


def test_an_evaluation_has_rewards_truncations_and_samples(
    rolled: Callable[..., slime.SlimeRollouts], tmp_path: Path
) -> None:
    """By data set, as many copies as it says, without those that the infrastructure failed."""
    path = tmp_path / "eval.jsonl"
    path.write_text("".join(json.dumps({"metadata": row}) + "\n" for row in rows("a", "b")))
    dataset = Namespace(
        name="small",
        path=str(path),
        metadata_key=None,
        n_samples_per_eval_prompt=2,
        temperature=0.0,
    )
    rollouts = rolled(
        slime_args(eval_datasets=[dataset]), envs=broken("a#1"), groups={"retries": 0}
    )
    output = rollouts.evaluate()
    assert isinstance(output, stand_in.RolloutFnEvalOutput)
    found = output.data["small"]
    assert [(s.metadata["instance_id"], s.index) for s in found["samples"]] == [
        ("a", 0),
        ("b", 2),
        ("b", 3),
    ]
    assert found["rewards"] == [sample.reward for sample in found["samples"]]
    assert found["truncated"] == [False] * 3
    assert output.metrics == {"eval/small/masked": 1}
    for sample in found["samples"]:
        check_shapes(sample)


# --- rewards ----------------------------------------------------------------------------------


def scored(group: int, *rewards: float | None) -> list[Sample]:
    """Samples of a group; None is a masked one."""
    return [
        Sample(group_index=group, reward=reward or 0.0, remove_sample=reward is None)
        for reward in rewards
    ]


def test_masked_samples_are_out_of_mean_and_deviation() -> None:
    """The others are normalised as if it were not there; it gets nothing."""
    raw, rewards = slime.post_process_rewards(slime_args(), scored(0, 1.0, None, 0.0, 0.0))
    assert raw == [1.0, 0.0, 0.0, 0.0]
    mean, deviation = 1 / 3, statistics.stdev([1.0, 0.0, 0.0]) + 1e-6
    assert rewards[1] == 0.0
    assert rewards[0] == pytest.approx((1 - mean) / deviation)
    assert rewards[2] == rewards[3] == pytest.approx(-mean / deviation)


def test_each_group_is_normalised_by_itself() -> None:
    """Also where groups are interleaved or unequal; one that nobody counts in is all 0."""
    one, other, dead = scored(0, 1.0, 0.0), scored(1, 1.0, 1.0, 1.0), scored(2, None, None)
    samples = [one[0], *other, *dead, one[1]]
    _, rewards = slime.post_process_rewards(slime_args(grpo_std_normalization=False), samples)
    assert rewards == [0.5, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5]


def test_a_lone_member_gets_no_advantage() -> None:
    """Its deviation does not exist, and must not become NaN."""
    _, rewards = slime.post_process_rewards(slime_args(), scored(0, 1.0, None, None))
    assert rewards == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("args", [{"advantage_estimator": "ppo"}, {"rewards_normalization": False}])
def test_rewards_are_left_alone_where_slime_leaves_them_alone(args: dict[str, Any]) -> None:
    """As its own function does."""
    raw, rewards = slime.post_process_rewards(slime_args(**args), scored(0, 1.0, 0.5))
    assert raw == rewards == [1.0, 0.5]


# --- configuration ----------------------------------------------------------------------------


def test_the_function_that_slime_calls_starts_what_its_arguments_say(tmp_path: Path) -> None:
    """Once for a data source: from `args.agentflow`, with slime's own options for the rest."""
    here = Path(__file__).parent.parent / "cli" / "parts.py"
    sections = {
        "engine": {"url": "scripted:noop"},
        "flow": {
            name: {"name": f"{here}:{builder}"}
            for name, builder in (
                ("agent", "AgentBuilder"),
                ("environment", "EnvBuilder"),
                ("runtime", "RuntimeBuilder"),
            )
        },
    }
    source = DataSource(rows("a", "b"), n=N)
    args = slime_args(agentflow=sections)
    try:
        outputs = [slime.generate_rollout(args, i, source) for i in range(2)]
        held = slime._HELD[source]
        assert isinstance(held, slime.SlimeRollouts)
    finally:
        slime._HELD[source].close()
    assert [len(group) for output in outputs for group in output.samples] == [N] * 4
    for sample in (s for output in outputs for group in output.samples for s in group):
        check_shapes(sample)
    assert sections["engine"] == {"url": "scripted:noop"}  # it is the caller's


def test_slimes_options_fill_in_what_the_configuration_leaves_open(tmp_path: Path) -> None:
    """Model folder, group size and sampling; what the file says wins."""
    file = tmp_path / "agentflow.yaml"
    file.write_text("engine: {url: 'http://one:1,http://two:2', model: mine}\n")
    config = slime_config(slime_args(agentflow=str(file), hf_checkpoint="theirs"))
    assert (config.engine.model, config.run.n) == ("mine", N)
    sampling = sampling_of(slime_args(rollout_stop="STOP"), Namespace(temperature=0.0))
    assert (sampling.temperature, sampling.max_new_tokens) == (0.0, 200)
    assert sampling.stop == ("STOP",)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "agentflow: None must be a configuration file or its content"),
        ({"agentflow": {}, "rollout_top_p": 0.9}, "--rollout-top-p: 0.9: must be 1.0"),
        ({"agentflow": {}, "group_rm": True}, "--group-rm: True: every episode is judged"),
        (
            {"agentflow": {}, "sglang_router_ip": "127.0.0.1", "sglang_router_port": 1},
            "http://127.0.0.1:1/workers: slime's router does not tell its engines",
        ),
    ],
)
def test_options_that_could_not_be_kept_are_refused(args: dict[str, Any], said: str) -> None:
    """With the option, its value and why."""
    with pytest.raises(ConfigError, match=said):
        slime_config(slime_args(**args))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"repo": "r"}, r"sample 0: metadata has no instance_id \(it has repo\)"),
        ({"instance_id": "x"}, "'x' has no problem_statement, and is not in tasks.source"),
    ],
)
def test_a_prompt_that_is_no_task_is_refused(
    rolled: Callable[..., slime.SlimeRollouts], row: dict[str, Any], said: str
) -> None:
    """With the sample's index and what would be right."""
    with pytest.raises(ConfigError, match=said):
        rolled(slime_args()).train(0, DataSource([row], n=N))


# --- slime itself -----------------------------------------------------------------------------


def test_importing_needs_neither_slime_nor_torch() -> None:
    """Types are looked up when a function is called."""
    code = (
        "import sys, executors.trainers.slime\n"
        "assert not {'slime', 'torch'} & {name.partition('.')[0] for name in sys.modules}"
    )
    root = Path(__file__).parent.parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, check=False)
    assert done.returncode == 0


@pytest.mark.skipif("AGENTFLOW_SLIME" not in os.environ, reason="names a checkout of slime v0.3.1")
def test_the_stand_in_has_the_fields_of_the_real_records() -> None:
    """By the source, which needs no torch to be read."""
    root = Path(os.environ["AGENTFLOW_SLIME"]) / "slime"
    for file, name in (
        ("utils/types.py", "Sample"),
        ("rollout/base_types.py", "RolloutFnTrainOutput"),
        ("rollout/base_types.py", "RolloutFnEvalOutput"),
    ):
        found = _class(root / file, name)
        made = getattr(stand_in, name)
        left_out = stand_in.FIELDS_NOT_OURS if name == "Sample" else set()
        assert _fields(found) == {*made.__dataclass_fields__} | left_out
    status = next(n for n in _class(root / "utils/types.py", "Sample").body if _named(n, "Status"))
    assert isinstance(status, ast.ClassDef)
    values = {node.targets[0].id: node.value.value for node in status.body if _assigns(node)}  # type: ignore[attr-defined]
    assert values == {member.name: member.value for member in Sample.Status}


def _class(path: Path, name: str) -> ast.ClassDef:
    found = next(node for node in ast.parse(path.read_text()).body if _named(node, name))
    assert isinstance(found, ast.ClassDef)
    return found


def _named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.ClassDef) and node.name == name


def _assigns(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign)


def _fields(found: ast.ClassDef) -> set[str]:
    return {
        node.target.id
        for node in found.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
