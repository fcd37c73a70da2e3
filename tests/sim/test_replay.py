"""A recorded run comes back as the traces that it was, and can be scheduled anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from test_simulate import config, tiny

from agentflow.engine.recorded_tokens import token_archive, tokens_name
from agentflow.errors import ConfigError
from executors.runs.sample_rows import sample_row
from executors.virtual.drivers import naive
from executors.virtual.replay import load_recording
from executors.virtual.simulate import SimulationReport, simulate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def record(report: SimulationReport, folder: Path) -> None:
    """Write what a run directory keeps of a run."""
    (folder / "tokens").mkdir()
    (folder / "events.jsonl").write_bytes(b"".join(report.events))
    with (folder / "samples.jsonl").open("wb") as file:
        for sample in report.samples:
            (folder / tokens_name(sample.episode.key)).write_bytes(token_archive(sample))
            row = sample_row(sample) | {"task": None}
            file.write(orjson.dumps(row, default=str, option=orjson.OPT_APPEND_NEWLINE))


def test_a_recording_has_the_lengths_and_times_that_were_played(tmp_path: Path) -> None:
    """Tokens are exact; times too, as nothing slows an action down here but its trace."""
    traces = tiny(groups=2)
    record(simulate(traces, config(starts=None, growth=0.0), naive(100)), tmp_path)
    recording = load_recording(tmp_path)
    assert recording.skipped == 0
    for found, played in zip(recording.traces, traces, strict=True):
        assert (found.episode, found.prompt) == (played.episode, played.prompt)
        assert [t.output for t in found.turns] == [t.output for t in played.turns]
        seen = [t.observation for t in played.turns[:-1]]
        assert [t.observation for t in found.turns[:-1]] == seen
        assert [t.command_s for t in found.turns] == pytest.approx(
            [t.command_s for t in played.turns]
        )
        assert found.start_s == pytest.approx(played.start_s)
        assert found.verify_s == pytest.approx(played.verify_s)
        assert found.resolved == played.resolved


def test_a_recording_is_scheduled_on_other_resources(tmp_path: Path) -> None:
    """Played back on the same machine it takes as long; on one slot it takes longer."""
    first = simulate(tiny(), config(starts=None, growth=0.0), naive(12))
    record(first, tmp_path)
    traces = load_recording(tmp_path).traces
    same = simulate(traces, config(starts=None, growth=0.0), naive(12))
    less = simulate(traces, config(starts=None, growth=0.0), naive(1))
    assert same.makespan_s == pytest.approx(first.makespan_s, rel=0.01)
    assert less.makespan_s > 2 * same.makespan_s


def test_an_unfinished_last_line_is_no_error_and_any_other_is(tmp_path: Path) -> None:
    """A killed run may leave one."""
    record(simulate(tiny(groups=1), config(), naive(4)), tmp_path)
    events = tmp_path / "events.jsonl"
    whole = events.read_bytes()
    events.write_bytes(whole + b'{"t": 1')
    assert len(load_recording(tmp_path).traces) == 4
    events.write_bytes(b"{\n" + whole)
    with pytest.raises(ConfigError, match=r"events\.jsonl, line 1"):
        load_recording(tmp_path)


def test_what_is_no_run_directory_is_an_error(tmp_path: Path) -> None:
    """The message names the file and the option."""
    with pytest.raises(ConfigError, match=r"events\.jsonl: .*--from takes a run directory"):
        load_recording(tmp_path)


def rewritten(name: str, **changes: object) -> Callable[[Path], None]:
    """Change fields of every line of a file; None takes one away."""

    def damage(folder: Path) -> None:
        rows = [orjson.loads(line) | changes for line in (folder / name).read_bytes().splitlines()]
        rows = [{k: v for k, v in row.items() if v is not None} for row in rows]
        (folder / name).write_bytes(b"\n".join(map(orjson.dumps, rows)))

    return damage


def cut(pattern: str, size: int) -> Callable[[Path], None]:
    """Keep the first bytes of every file that fits."""

    def damage(folder: Path) -> None:
        for path in folder.glob(pattern):
            path.write_bytes(path.read_bytes()[:size])

    return damage


def doubled(folder: Path) -> None:
    """Let every sample end twice."""
    rows = (folder / "samples.jsonl").read_bytes()
    (folder / "samples.jsonl").write_bytes(rows + rows)


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (cut("tokens/*.npz", 100), r"npz is no record of an episode's tokens"),
        (cut("tokens/*.npz", 0), r"npz is no record of an episode's tokens"),
        (
            cut("events.jsonl", 0),
            r"tells of 0 turns of tiny-00000#0, which had \d+: the file is cut",
        ),
        (cut("events.jsonl", 2000), r"the file is cut"),
        (cut("samples.jsonl", 0), r"holds no episode"),
        (rewritten("events.jsonl", t=None), r"events.jsonl, line 1: t: Field required"),
        (rewritten("events.jsonl", t="soon"), r"events.jsonl, line 1: t: Input should be"),
        (rewritten("samples.jsonl", uid=None), r"samples.jsonl, line 1: uid: Field required"),
        (rewritten("samples.jsonl", replica_index="a"), r"line 1: replica_index: Input should be"),
        (doubled, r"tiny-00000#0 has ended twice"),
    ],
)
def test_a_damaged_recording_is_an_error_that_says_where(
    damage: Callable[[Path], None], told: str, tmp_path: Path
) -> None:
    """What is missing may not come out as no time, which would make every schedule look good."""
    record(simulate(tiny(groups=1), config(), naive(4)), tmp_path)
    damage(tmp_path)
    with pytest.raises(ConfigError, match=told):
        load_recording(tmp_path)
