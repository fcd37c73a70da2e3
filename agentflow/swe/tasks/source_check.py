"""What can be said of a task's source before anything is started.

Looks whether local folders are there; fetches and reads nothing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, assert_never

from agentflow.swe.tasks.loader import BUNDLED
from agentflow.swe.tasks.schema import (
    BundledSource,
    DirSource,
    GitSource,
    ImageSource,
    PypiSource,
    parse_task,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agentflow.swe.tasks.schema import SWETask


def source_problem(row: Mapping[str, Any], environment: Mapping[str, Any]) -> str | None:
    """Say why a task's repository cannot be had, or nothing.

    `environment` is the flow's section of that name. Raises ConfigError for a row that is none.
    """
    task = parse_task(row)
    match task.source:
        case BundledSource(name=name):
            found = (BUNDLED / name).is_dir()
            return None if found else f"source.name: {name!r}: no bundled task is called that"
        case DirSource(path=path, tests=tests):
            return _no_folder("path", path) or (_no_folder("tests", tests) if tests else None)
        case GitSource(url=url):
            return _git_problem(url, task)
        case ImageSource():
            return _image_problem(task, environment)
        case PypiSource():
            return None
        case never:
            assert_never(never)


def _no_folder(field: str, path: str) -> str | None:
    return None if Path(path).is_dir() else f"source.{field}: {path!r}: no such folder"


def _git_problem(url: str, task: SWETask) -> str | None:
    if not task.base_commit:
        return "base_commit is missing: it says which state of the repository is meant"
    is_path = ":" not in url
    return f"source.url: {url!r}: no such folder" if is_path and not Path(url).is_dir() else None


def _image_problem(task: SWETask, environment: Mapping[str, Any]) -> str | None:
    match environment["name"]:
        case "local":
            return (
                "its repository stands in an image, and environment 'local' has none: give the row"
                f" a `source` (as {_example(task)}), or take --env docker with an `image`"
            )
        case "docker" if not (task.image or environment.get("image")):
            return (
                "its repository stands in an image, and none is named: give the row an `image` or"
                f" a `source` (as {_example(task)})"
            )
        case _:
            return None


def _example(task: SWETask) -> str:
    url = f"https://github.com/{task.repo or 'OWNER/NAME'}"
    return f'{{"type": "git", "url": "{url}"}}'
