"""What the benchmarks on servers play, against the fake one."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from agentflow.engine.fake_sglang import FakeModel, FakeOptions, FakeSglang
from benchmarks.gpu import main as gpu_main
from benchmarks.live_play import POLICIES, play
from benchmarks.peer_work import make_workload
from benchmarks.peers import play as play_peer

if TYPE_CHECKING:
    from benchmarks.peer_work import Workload

VOCAB = 32_000


def small(*, containers: int = 4) -> Workload:
    """Six short episodes whose environments take no time."""
    workload = make_workload(episodes=6, turns=3, slots=2, containers=containers)
    for episode in workload["episodes"]:
        episode["start_s"] = 0.0
        episode["commands_s"] = [0.0 for _ in episode["commands_s"]]
    return workload


@pytest.mark.parametrize(("policy", "containers"), [*((name, 4) for name in POLICIES), ("fcfs", 2)])
async def test_every_turn_has_the_tokens_that_the_workload_says(
    policy: str, containers: int
) -> None:
    """By trajectory and by action, through the real client; also with no container to spare."""
    model = FakeModel(vocab_size=VOCAB, eos_id=VOCAB - 1, context_length=100_000)
    workload = small(containers=containers)
    async with FakeSglang(FakeOptions(model=model, slots=2)) as server:
        tokens = await play(workload, (server.url,), policy=policy, vocab_size=VOCAB)
    wanted = [e["tokens"] * len(e["commands_s"]) for e in workload["episodes"]]
    assert sorted(tokens) == sorted(wanted)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["peer_ours", "peer_mini"])
def test_a_driver_plays_all_of_it_and_loses_nothing_without_an_abort(driver: str) -> None:
    """In a process of its own, on a server of its own."""
    command = [sys.executable, "-m", f"benchmarks.{driver}"]
    columns = play_peer(small(), command, servers=1, abort_after_s=None)
    assert columns["tokens_lost"] == 0
    assert 0 < columns["slot_use"] <= 1
    assert columns["cpu_ms_turn"] > 0


@pytest.mark.slow
def test_what_an_abort_in_the_middle_cost_is_counted() -> None:
    """The library asks again for what it had; ours goes on from its tokens."""
    lost = {}
    for driver in ("peer_ours", "peer_mini"):
        command = [sys.executable, "-m", f"benchmarks.{driver}"]
        columns = play_peer(small(), command, servers=1, abort_after_s=0.5)
        lost[driver] = columns["tokens_lost"]
    assert lost["peer_ours"] == 0 < lost["peer_mini"]


def test_without_a_gpu_it_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """In one line, and starts nothing."""
    assert gpu_main(["--url", "http://127.0.0.1:9"]) == 2
    told = capsys.readouterr().out
    assert "an answer from http://127.0.0.1:9/v1/loads" in told
    assert len(told.splitlines()) == 1
