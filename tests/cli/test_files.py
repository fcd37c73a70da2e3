"""Writing files that are whole, or one clear error."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from agentflow.types import EpisodeId
from executors.runs.files import LineFile, OutputError, write_atomic
from executors.runs.logs import logging_to
from executors.runs.sample_rows import trajectory_name


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Afterwards the new content stands there and no helper file."""
    path = tmp_path / "run.json"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_a_replacement_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """Here the target is a folder, so that the rename is refused."""
    path = tmp_path / "run.json"
    path.mkdir()
    with pytest.raises(OutputError, match=r"cannot write .*run\.json: Is a directory"):
        write_atomic(path, b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_lines_are_on_their_way_to_the_disk_at_once(tmp_path: Path) -> None:
    """A line can be read by others before the file is closed, so it survives a kill -9."""
    lines = LineFile(tmp_path / "samples.jsonl")
    lines.append(b"1\n")
    assert (tmp_path / "samples.jsonl").read_bytes() == b"1\n"
    lines.append(b"2\n")
    lines.close()
    lines.close()
    assert (tmp_path / "samples.jsonl").read_bytes() == b"1\n2\n"


def test_a_full_disk_is_one_error_with_the_files_name() -> None:
    """The system's words are kept."""
    lines = LineFile(Path("/dev/full"))
    with pytest.raises(OutputError, match="cannot write /dev/full: No space left on device"):
        lines.append(b"1\n")
    lines.close()


@pytest.mark.parametrize("uid", ["a/b", "../../etc/passwd", "x" * 500, "日本", "", "..", "a b#c"])
def test_a_trajectorys_name_stays_in_its_folder(uid: str) -> None:
    """Whatever a task is called, its file name is short, plain and its own."""
    name = trajectory_name(EpisodeId(uid=uid))
    folder, _, file = name.partition("/")
    assert folder == "trajectories"
    assert "/" not in file
    assert len(file.encode()) < 150
    assert EpisodeId(uid=uid).key in file


def test_a_log_tells_of_retries_once(tmp_path: Path) -> None:
    """A storm of retries does not fill it with lines that name nothing; everything else is kept."""
    path = tmp_path / "run.log"
    with logging_to(path):
        logging.getLogger("stamina").warning("stamina.retry_scheduled")
        logging.getLogger("agentflow.engine").warning("found no place")
    assert [line.split(": ")[1] for line in path.read_text().splitlines()] == ["found no place"]
