"""The configuration: where values come from, and how everything wrong with them is told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentflow.config_loading import Sources, check, load_config, parse_assignment, read_file
from agentflow.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from agentflow.config import AgentflowConfig

OWN_PROVIDERS = """
flow:
  python_path: [{folder}]
  agent: {{name: own_providers.py:Builder, {keys}}}
  environment: {{name: own_providers.py:Builder}}
  runtime: {{name: own_providers.py:Builder}}
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    """A `flow` section of providers of the user's own, one of which declares its keys."""
    (tmp_path / "own_providers.py").write_text(
        "import pydantic\n"
        "class Keys(pydantic.BaseModel, extra='forbid'):\n    step_limit: int = 3\n"
        "class Builder:\n    config_class = Keys\n    def __init__(self, conf): ...\n"
    )
    return OWN_PROVIDERS.format(folder=tmp_path, keys="step_limit: 5")


def load(tmp_path: Path, text: str, **more: object) -> AgentflowConfig:
    """Load `text` as the file run.yaml."""
    file = tmp_path / "run.yaml"
    file.write_text(text)
    return load_config(file, **more)  # type: ignore[arg-type]


def problems(tmp_path: Path, text: str, **more: object) -> str:
    """Load `text`, which is wrong, and return the message without the folder's name."""
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text, **more)
    return str(caught.value).replace(f"{tmp_path}/", "")


def test_values_come_from_file_then_options_then_assignments(tmp_path: Path, own: str) -> None:
    """The nearer to the user's fingers, the stronger; what nobody sets is the default."""
    config = load(
        tmp_path,
        "run: {n: 2, seed: 1}\nsampling: {top_p: 1e-1}\n" + own,
        options={"--n": (("run", "n"), 3), "--seed": (("run", "seed"), None)},
        assignments=["sampling.temperature=0.5", "tasks.only=[a, b]"],
    )
    assert (config.run.n, config.run.seed, config.rollout.max_concurrency) == (3, 1, 4)
    assert config.sampling.params().top_p == pytest.approx(0.1)
    assert config.sampling.temperature == pytest.approx(0.5)
    assert config.tasks.only == ("a", "b")
    assert config.flow.agent["step_limit"] == 5


def test_all_problems_are_told_at_once_with_file_line_field_and_value(
    tmp_path: Path, own: str
) -> None:
    """Unknown keys, wrong types and values out of range, from the file and the command line."""
    text = "run:\n  sead: 3\n  n: '4'\nsampling:\n  top_p: 2\n" + own
    said = problems(tmp_path, text, assignments=["rollout.max_concurrency=0"])
    assert "run.yaml:2: run.sead: unknown key; did you mean 'seed'?" in said
    assert "run.yaml:3: run.n: '4' should be a valid integer" in said
    assert "run.yaml:5: sampling.top_p: 2 should be less than or equal to 1" in said
    assert "--set rollout.max_concurrency=0: rollout.max_concurrency: 0 should be" in said
    assert len(said.splitlines()) == 4


def test_a_providers_own_keys_are_checked_with_its_config_class(tmp_path: Path, own: str) -> None:
    """An unknown key of a provider is found before anything runs, on its line."""
    said = problems(tmp_path, own.replace("step_limit: 5", "step_limt: 5"))
    assert said.startswith("run.yaml:4: flow.agent.step_limt: unknown key; did you mean 'step_l")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("run: {n: 1}\nrun: {n: 2}\n", "run.yaml:2: run: given twice, first on line 1"),
        ("run:\n  n: 1\n  n: 2\n", "run.yaml:3: run.n: given twice, first on line 2"),
        ("run: [1\n", "run.yaml:2: is not valid YAML"),
        ("run: \t1\n\t2", "is not valid YAML"),
        ("- 1\n- 2\n", "run.yaml:1: a mapping of sections is wanted, not a list"),
        ("run: &a\n  tag: *a\n", "run.yaml:1: contains itself by an alias"),
        ("run: !!python/object/apply:os.getcwd []\n", "run.yaml:1: is not valid YAML"),
        ("a: 1\n---\nb: 2\n", "run.yaml:2: is not valid YAML"),
        ("engine: 3\n", "run.yaml:1: engine: 3 should be a mapping of keys"),
        ("tasks: {only: x}\n", "run.yaml:1: tasks.only: 'x' should be a list"),
        ("run: {n: true}\n", "run.yaml:1: run.n: True should be a valid integer"),
        (
            "rollout: {max_concurrency: 4, gen_concurrency: 5}\n",
            "run.yaml:1: rollout: gen_concurrency 5 is more than max_concurrency 4",
        ),
        ("rollout: {async_factor: 1.6}\n", "rollout.async_factor: 1.6 should be less than or"),
        ("rollout: {rehearse_syncs_s: .inf}\n", "rehearse_syncs_s: inf should be a finite number"),
        (
            "rollout: {policy: {name: fcsf}}\n",
            "rollout.policy: policy 'fcsf' is not known; did you mean 'fcfs'?",
        ),
        ("rollout: {policy: {}}\n", "rollout.policy: needs a `name` (built in: fcfs, "),
        (
            "rollout: {preemption: true}\n",
            "policy 'fcfs': knows no high class that could preempt; leave preemption out",
        ),
        (
            "rollout: {policy: {name: longest_predicted_first}, preemption: true}\n",
            "high_above: is missing; without it nobody is high, to preempt others",
        ),
        (
            "rollout: {policy: {name: fcfs_preempt, windw: 3}}\n",
            "policy 'fcfs_preempt': unknown key 'windw'; did you mean 'window'?",
        ),
        (
            "rollout: {policy: {name: fcfs_preempt}}\n",
            "policy 'fcfs_preempt': window is missing",
        ),
        (
            "rollout: {policy: {name: fcfs_preempt, window: many}}\n",
            "policy 'fcfs_preempt': window: 'many' must be a whole number",
        ),
        (
            "rollout: {policy: {name: longest_predicted_first, high_above: many}}\n",
            "high_above: 'many' must be a number",
        ),
        (
            "rollout: {policy: {name: 'fractions:Fraction'}}\n",
            "policy 'fractions:Fraction': Fraction(0, 1) is no policy: it needs `preempts` and",
        ),
        (
            "rollout: {policy: {name: fcfs_preempt, window: -1}}\n",
            "window: -1 must be at least 0",
        ),
        ("rollout: {policy: {age_s: -3, name: fcfs}}\n", "age_s: -3 must be at least 0"),
        (
            "rollout: {policy: {name: longest_predicted_first, high_above: .nan}}\n",
            "high_above: nan must be at least 0 tokens",
        ),
        ("flow: {name: swee}\n", "flow.name: flow 'swee' is not known; did you mean 'swe'?"),
        (
            "flow: {agent: {name: minisweagnt}}\n",
            "flow.agent.name: agent 'minisweagnt' is not known; did you mean 'minisweagent'?",
        ),
        ("flow: {agent: {name: 3}}\n", "run.yaml:1: flow.agent.name: 3 is no name (built in: "),
        ("flow: {options: {a: 1}}\n", "flow.options: {'a': 1}: the flow 'swe' takes no options"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_on_its_line(
    tmp_path: Path, text: str, said: str
) -> None:
    """YAML mistakes, duplicates and wrong shapes each have one message of their own."""
    assert said in problems(tmp_path, text)


def test_a_date_stays_text_and_an_empty_file_is_all_defaults(tmp_path: Path) -> None:
    """YAML's guesses do not surprise: a tag that looks like a date is a string."""
    file = tmp_path / "tag.yaml"
    file.write_text("run: {tag: 2026-01-01}\n")
    assert read_file(file).values == {"run": {"tag": "2026-01-01"}}
    file.write_text("# nothing\n")
    assert read_file(file).values == {}


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a folder and bytes that are no text are each one error."""
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"run: \xff\xfe")
    for file, said in [
        (tmp_path / "none.yaml", "none.yaml: cannot be read: No such file"),
        (tmp_path, "cannot be read: Is a directory"),
        (binary, "binary.yaml: is not UTF-8"),
    ]:
        with pytest.raises(ConfigError) as caught:
            read_file(file)
        assert said in str(caught.value)


@pytest.mark.parametrize("assignment", ["run.n", "=3", "run..n=3", ".=1", "run.n=[1"])
def test_a_malformed_assignment_is_refused(assignment: str) -> None:
    """`--set` wants dotted.field=YAML and says so."""
    with pytest.raises(ConfigError, match="--set"):
        parse_assignment(assignment)


def test_an_assignment_through_a_plain_value_is_refused() -> None:
    """`run.n.x=1` cannot go into a number."""
    sources = Sources(values={"run": {"n": 1}})
    with pytest.raises(ConfigError, match=r"run\.n is 1, which has no keys"):
        sources.set(("run", "n", "x"), 1, "--set run.n.x=1")


def test_overriding_what_an_alias_repeats_changes_one_place(tmp_path: Path) -> None:
    """YAML's anchors share an object; a run's sections do not."""
    file = tmp_path / "run.yaml"
    file.write_text("flow:\n  agent: &same {name: x, a: 1}\n  runtime: *same\n")
    sources = read_file(file)
    sources.set(("flow", "agent", "a"), 2, "--set")
    assert sources.values["flow"]["runtime"] == {"name": "x", "a": 1}
    assert sources.where(("flow", "runtime", "a")) == f"{file}:2"


def test_a_flow_of_the_users_brings_its_own_options(tmp_path: Path) -> None:
    """Only the built-in flows have sections to check; others get theirs untouched."""
    (tmp_path / "af_own_flow.py").write_text("def flow(config, model): ...\n")
    values = {
        "flow": {
            "name": "af_own_flow:flow",
            "python_path": [str(tmp_path)],
            "options": {"depth": 3},
        }
    }
    assert check(Sources(values=values)).flow.options == {"depth": 3}


def test_a_section_without_a_name_is_the_default_providers(tmp_path: Path) -> None:
    """Keys from the file or the command line are laid over the provider that is built in."""
    pytest.importorskip("minisweagent")
    config = load(
        tmp_path,
        "flow:\n  agent: {step_limit: 5}\n",
        assignments=["flow.environment.timeout_s=5", "flow.runtime.max_patch_bytes=9"],
    )
    assert config.flow.agent == {"name": "action_level_minisweagent", "step_limit": 5}
    assert config.flow.environment == {"name": "local", "timeout_s": 5}
    assert config.flow.runtime == {"name": "swe", "max_patch_bytes": 9}


def test_unknown_keys_of_every_section_are_told_together_with_the_schemas(tmp_path: Path) -> None:
    """Environment, runtime and agent say file, line and the nearest key, as the schema does."""
    pytest.importorskip("minisweagent")
    said = problems(
        tmp_path,
        "run:\n  sead: 1\nflow:\n  environment:\n    timout_s: 5\n  runtime:\n    pyhton: x\n"
        "  agent:\n    step_limt: 5\n",
    )
    assert "run.yaml:2: run.sead: unknown key; did you mean 'seed'?" in said
    assert "run.yaml:5: flow.environment.timout_s: unknown key; did you mean 'timeout_s'?" in said
    assert "run.yaml:7: flow.runtime.pyhton: unknown key; did you mean 'python'?" in said
    assert "run.yaml:9: flow.agent.step_limt: unknown key; did you mean 'step_limit'?" in said
    assert len(said.splitlines()) == 4


def test_unknown_keys_of_a_docker_environment_are_told_on_their_line(tmp_path: Path) -> None:
    """Its configuration is read once it is named."""
    pytest.importorskip("docker")
    text = "flow:\n  environment:\n    name: docker\n    memory_byts: 5\n"
    said = problems(tmp_path, text)
    assert said.startswith("run.yaml:4: flow.environment.memory_byts: unknown key; did you mean 'm")
