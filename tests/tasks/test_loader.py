"""Task rows: what is read as it is, and what is refused with one clear line."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from agentflow.errors import ConfigError
from agentflow.swe.tasks import load_tasks, parse_task

if TYPE_CHECKING:
    from pathlib import Path


def row(**changes: Any) -> dict[str, Any]:
    """A row of SWE-bench, with changes."""
    return {
        "instance_id": "a__b-1",
        "repo": "a/b",
        "base_commit": "0" * 40,
        "problem_statement": "It is broken.",
        "patch": "",
        "test_patch": "",
        "hints_text": "",
        "version": "1.0",
        "FAIL_TO_PASS": '["tests/test_a.py::test_one"]',
        "PASS_TO_PASS": ["tests/test_a.py::test_two"],
        **changes,
    }


def write_lines(path: Path, *lines: str) -> Path:
    """Write a task file."""
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_row_of_swe_bench_is_read_as_it_is(tmp_path: Path) -> None:
    """Its lists may be JSON in a string, and its other keys are carried along untouched."""
    given = row(some_dataset_column=[1])
    loaded = load_tasks(write_lines(tmp_path / "t.jsonl", json.dumps(given), ""))
    task = parse_task(loaded[0])
    assert loaded == [given]
    assert task.FAIL_TO_PASS == ("tests/test_a.py::test_one",)
    assert task.judged_files == ("tests/test_a.py",)
    assert task.source.type == "image"


@pytest.mark.parametrize("name", ["list.json", "one.json", "folder"])
def test_json_files_and_folders(tmp_path: Path, name: str) -> None:
    """A JSON list, a single row and a folder of files are task files too."""
    write_lines(tmp_path / "list.json", json.dumps([row()]))
    write_lines(tmp_path / "one.json", json.dumps(row()))
    (tmp_path / "folder").mkdir()
    write_lines(tmp_path / "folder" / "rows.jsonl", json.dumps(row()))
    assert [task["instance_id"] for task in load_tasks(tmp_path / name)] == ["a__b-1"]


def test_names_can_be_joined() -> None:
    """`bundled,pypi` is our own tasks and the pairs of releases."""
    ids = [task["instance_id"] for task in load_tasks("bundled,pypi")]
    assert len(ids) == len(load_tasks("bundled")) + 3
    assert {"pathspec-0.12.1", "xmltodict-0.14.2", "pyjwt-2.10.1"} < set(ids)


def test_paths_of_a_dir_source_are_relative_to_the_task_file(tmp_path: Path) -> None:
    """A loaded row means the same wherever it is read later."""
    given = row(source={"type": "dir", "path": "repo", "tests": "judge"})
    (loaded,) = load_tasks(write_lines(tmp_path / "t.jsonl", json.dumps(given)))
    assert loaded["source"]["path"] == str(tmp_path / "repo")
    assert loaded["source"]["tests"] == str(tmp_path / "judge")


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        ([""], r"t\.jsonl: empty"),
        (["  ", "\t"], r"t\.jsonl: empty"),
        ([json.dumps(row(instance_id=str(i))) for i in range(6)] + ['{"a": 1,}'], r"t\.jsonl:7: "),
        ([json.dumps(row()), json.dumps(row())], r"t\.jsonl:2: .*'a__b-1' .*t\.jsonl:1"),
        ([json.dumps(row(FAIL_TO_PASS=[]))], r"t\.jsonl:1: a__b-1: FAIL_TO_PASS is missing or emp"),
        ([json.dumps(row(FAIL_TO_PASS="[]"))], r"FAIL_TO_PASS is missing or empty"),
        ([json.dumps({"instance_id": "x", "problem_statement": "y"})], r"FAIL_TO_PASS is missing"),
        ([json.dumps(row(FAIL_TO_PASS="[oops"))], r"FAIL_TO_PASS: must be a list"),
        ([json.dumps(row(FAIL_TO_PASS=["test_x (a.B)"]))], r"is no pytest id"),
        ([json.dumps(row(FAIL_TO_PASS=["../x.py::t"]))], r"stay inside"),
        ([json.dumps(row(eval_timout_s=3))], r"'eval_timout_s': did you mean 'eval_timeout_s'"),
        ([json.dumps(row(eval_timeout_s=0))], r"eval_timeout_s: .*\(got '0'\)"),
        ([json.dumps(row(source={"type": "pip"}))], r"source.*must be one of bundled, dir"),
        (
            [json.dumps(row(source={"type": "pypi", "name": "x", "bad": "1", "god": "2"}))],
            r"did you mean 'good'",
        ),
        (["[1, 2]"], r"t\.jsonl:1: expected a task row"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, lines: list[str], complaint: str) -> None:
    """Each is one ConfigError that says where and what."""
    path = write_lines(tmp_path / "t.jsonl", *lines)
    with pytest.raises(ConfigError) as caught:
        load_tasks(path)
    assert re.search(complaint, str(caught.value)), caught.value
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    """What is neither a name nor a file says what would be right."""
    with pytest.raises(ConfigError, match=r"'nowhere\.jsonl': no such file; expected .*'bundled'"):
        load_tasks("nowhere.jsonl")


def test_what_is_not_text_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are no task file."""
    (tmp_path / "t.jsonl").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ConfigError, match="not UTF-8 at byte 7"):
        load_tasks(tmp_path / "t.jsonl")


def test_a_row_that_is_nested_too_deeply_is_one_line(tmp_path: Path) -> None:
    """No traceback of the parser's."""
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"deep.json:1: bad JSON: nested too deeply"):
        load_tasks(file)
