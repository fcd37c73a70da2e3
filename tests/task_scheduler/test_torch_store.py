"""`.pt` files: tensors and primitive containers, and nothing that runs code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import scheduler_parts as parts

from agentflow.errors import ConfigError
from agentflow.runner import AsyncioRunner
from executors.task_scheduler import SchedulerArgs, SchedulerRolloutManager
from executors.task_scheduler.partial_checkpoint import PartialCheckpoint
from executors.task_scheduler.stores import TorchStore

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.torch


def test_arrays_and_containers_come_back(tmp_path: Path) -> None:
    """With their types."""
    store = TorchStore()
    value: dict[str, Any] = {"a": np.arange(3, dtype=np.int8), "b": [1, "x", None, {"c": 0.5}]}
    store.save(tmp_path / "x.pt", value)
    back = store.load(tmp_path / "x.pt")
    assert back["b"] == value["b"]
    assert back["a"].dtype == np.int8
    assert back["a"].tolist() == [0, 1, 2]


async def test_the_trajectory_file_loads_with_weights_only(tmp_path: Path) -> None:
    """As a trainer reads it; so do plan and groups of the partial checkpoint."""
    import torch  # noqa: PLC0415  # of this marker

    args = SchedulerArgs(save=str(tmp_path), rollout_batch_size=2)
    store = TorchStore()
    it = parts.scheduler(
        args=args,
        source=parts.source(AsyncioRunner(), n=2),
        checkpoint=PartialCheckpoint.of(args, store=store),
    )
    manager = SchedulerRolloutManager(it, args=args, store=store, environ={})
    step = await manager.generate(0)
    files = sorted(tmp_path.rglob("*.pt"))  # noqa: ASYNC240  # a local folder
    assert [file.name for file in files] == [
        "group_000000.pt",
        "group_000001.pt",
        "plan.pt",
        "source_000000.pt",
        "trajectory_sft_samples.pt",
        "trajectory_sft_samples_iter_000.pt",
    ]
    loaded = [torch.load(file, weights_only=True) for file in files]
    record = loaded[4]["groups"][0][0]
    assert record["reward"] == {"score": 1.0}
    assert record["responses"].tolist() == [3, 4, 5]
    assert record["response_mask"].dtype == torch.int8
    again = await manager.generate(1)
    assert [g[0].episode for g in again.groups] == [g[0].episode for g in step.groups]


def test_a_file_that_would_run_code_is_refused(tmp_path: Path) -> None:
    """A pickle with a function in it is not read."""
    import torch  # noqa: PLC0415  # of this marker

    torch.save({"f": print}, tmp_path / "bad.pt")
    with pytest.raises(ConfigError, match=r"bad\.pt: cannot be read as a \.pt file"):
        TorchStore().load(tmp_path / "bad.pt")
    with pytest.raises(ConfigError, match="cannot be read"):
        TorchStore().load(tmp_path / "absent.pt")
