"""Section 3: the cluster layout's schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agentflow.errors import ConfigError
from executors.task_scheduler import PlacementPool, Resource
from executors.task_scheduler.cluster_layout import _build_placement_pool
from executors.task_scheduler.resource import ONE

if TYPE_CHECKING:
    from pathlib import Path

FULL = '{"127.0.0.1": {"gpus": [0, 1, 2, 3], "cpu": 96, "memory_gb": 384}}'


def build(layout: str | None) -> PlacementPool | None:
    """Build with fallbacks of 8 cores and 32 GB."""
    return _build_placement_pool(layout, num_cpus=8, memory_gb=32)


def test_the_full_form_says_everything_itself() -> None:
    """GPUs, CPU and memory of the text's example."""
    pool = build(FULL)
    assert pool is not None
    assert pool.free() == {"127.0.0.1": (4 * ONE, 96 * ONE, 384 * ONE)}


def test_the_shorthand_takes_cpu_and_memory_from_the_flags() -> None:
    """A bare list of GPU ids."""
    pool = build('{"127.0.0.1": [0, 1, 2, 3]}')
    assert pool is not None
    assert pool.free() == {"127.0.0.1": (4 * ONE, 8 * ONE, 32 * ONE)}


def test_what_a_full_form_leaves_out_comes_from_the_flags() -> None:
    """Each key for itself."""
    pool = build('{"a": {"cpu": 2}, "b": {"memory_gb": 1.5}}')
    assert pool is not None
    assert pool.free()["a"] == (0, 2 * ONE, 32 * ONE)
    assert pool.max_tokens_for(Resource(memory_gb=1.5, cpu=8)) == 1


def test_a_file_is_read_as_well(tmp_path: Path) -> None:
    """Anything that does not look like JSON is a path."""
    file = tmp_path / "cluster_layout.json"
    file.write_text(FULL)
    pool = build(str(file))
    assert pool is not None
    assert list(pool.free()) == ["127.0.0.1"]


@pytest.mark.parametrize("absent", [None, "", "  "])
def test_without_a_layout_there_is_no_pool(absent: str | None) -> None:
    """Batches then launch ungated."""
    assert build(absent) is None


@pytest.mark.parametrize(
    ("layout", "complaint"),
    [
        ('{"a": {"gpu": [0]}}', r"node 'a': unknown key 'gpu'; did you mean 'gpus'\?"),
        ('{"a": {"cpu": "many"}}', r"node 'a': cpu is 'many'; it must be a number"),
        ('{"a": {"memory_gb": -1}}', r"node 'a': memory_gb is -1"),
        ('{"a": {"cpu": true}}', r"node 'a': cpu is True"),
        ('{"a": [0, 0]}', r"node 'a': gpus is \[0, 0\]; .* different GPU ids"),
        ('{"a": [1.5]}', r"node 'a': gpus is \[1.5\]"),
        ('{"a": {"gpus": 4}}', r"node 'a': gpus is 4"),
        ('{"a": 4}', r"node 'a' is 4; it must be a list of GPU ids or a mapping"),
        ("[0, 1]", r"is a list; it must map each node"),
        ("{}", r"has no node"),
        ('{"a": [0], "a": [1]}', r"cluster layout: 'a' stands there twice"),
        ('{"a": {"cpu": 1, "cpu": 2}}', r"cluster layout: 'cpu' stands there twice"),
        ('{"": [0]}', r"a node is named ''; give it its IP or a name"),
        ('{"a": {"cpu": NaN}}', r"node 'a': cpu is nan; it must be a finite number"),
        ('{"a": {"cpu": 1e999}}', r"node 'a': cpu is inf; it must be a finite number"),
        ("{", r"--env-cluster-layout: is not JSON"),
        ("no/such/file", r"neither inline JSON nor a file"),
    ],
)
def test_a_bad_layout_names_node_and_key(layout: str, complaint: str) -> None:
    """One clear message for each way to be wrong."""
    with pytest.raises(ConfigError, match=complaint):
        build(layout)
