"""`kill -9` of a run, and the same command again with --resume: as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
from typing import TYPE_CHECKING

import pytest
from killing import (
    begun,
    finish,
    in_journal,
    kill_when,
    left_in,
    lives,
    names,
    rows,
    start,
    tokens,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("AGENTFLOW_SOAK_KILLS", "3"))
EPISODES = 10


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run once without a disturbance."""
    folder = tmp_path_factory.mktemp("undisturbed")
    finish(start("new", folder / "run", folder / "scratch"))
    return folder / "run"


@pytest.mark.parametrize("seed", range(KILLS))
def test_a_killed_run_that_is_resumed_delivers_what_was_issued_once(
    seed: int, tmp_path: Path, undisturbed: Path
) -> None:
    """Killed at random moments, one of them in the resumed run: each sample ends once, exact."""
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    chance = random.Random(seed)
    done: list[set[str]] = []
    what = "new"
    for what in ("new", "resume"):
        wanted = min(len(names(out)) + chance.randrange(4), EPISODES - 1)

        def is_time(wanted: int = wanted) -> bool:  # one that never got under way cannot resume
            return in_journal(out, "samples") >= EPISODES and len(names(out)) >= wanted

        kill_when(start(what, out, scratch), is_time, more_s=chance.random())
        done.append(set(names(out)))
    finish(start("resume", out, scratch))

    assert sorted(names(out)) == sorted(names(undisturbed))
    assert len(set(names(out))) == EPISODES
    assert tokens(out) == tokens(undisturbed)
    *before, last = lives(out)  # a killed process may have told nothing yet
    assert not done[-1] & begun(last)
    assert len(before) < 2 or not done[0] & begun(before[1])
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["episodes"], summary["tokens"]["unaccounted"]) == (EPISODES, 0)
    assert json.loads((out / "run.json").read_text())["status"] == "done"
    assert not (out / "journal.sqlite").exists()
    assert left_in(scratch) == []
    assert "nothing is left to do" in finish(start("resume", out, scratch))


def test_a_generation_that_was_killed_goes_on_from_its_tokens(
    tmp_path: Path, undisturbed: Path
) -> None:
    """Killed when tokens of open turns were kept: those are not generated again."""
    out, scratch = tmp_path / "run", tmp_path / "scratch"
    run = start("new", out, scratch)
    assert kill_when(run, lambda: in_journal(out, "turns") >= 2)
    finish(start("resume", out, scratch))

    assert tokens(out) == tokens(undisturbed)
    *_, second = lives(out)  # the killed process may have told nothing yet
    went_on = begun(second, "resumed")
    assert went_on
    told = dict.fromkeys(went_on, 0)
    for event in second:
        if event["kind"] == "generation_ended":
            name = f"{event['uid']}#{event['replica_index']}"
            told[name] = told.get(name, 0) + event["tokens"]
    whole = {f"{r['uid']}#{r['replica_index']}": r["generated_tokens"] for r in rows(out)}
    assert all(told[name] <= whole[name] for name in went_on)
    assert any(told[name] < whole[name] for name in went_on)
    assert left_in(scratch) == []
